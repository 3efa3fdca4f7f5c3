// Activations in integers, with a scale for each 32: bytes; and 16 bits in the eighth of a row's groups that are largest,
// where rounding to bytes would move the most.

#ifndef JAXSPEC_ACTIVATIONS_H_
#define JAXSPEC_ACTIVATIONS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "integers.h"

namespace jaxspec {

constexpr int kGroup = 32;  // inputs that share a scale
constexpr int kFine = 8;    // one group in so many has 16 bits
constexpr float kByte = 127.0f, kWide = 127.0f * 256.0f;

struct alignas(16) Group {
#if JAXSPEC_BYTE_PRODUCTS
  Factor values[kGroup];  // or the upper bytes of 16 bits
  Factor low[kGroup];     // and the lower ones, signed
#else
  Factor values[kGroup];  // of each four in turn the even ones, then the odd ones
#endif
  float scale;
  float sums[2];     // of each half's values, times the scale
  int32_t whole[2];  // of each half's integers
  int32_t fine;
};

// Infinite where an activation is, or is NaN.
inline float LargestOf(const float* x) {
  Lanes most = {}, rest = {};
  for (int i = 0; i < kGroup; i += kLanes) {
    const Lanes some = Read(x + i), size = some < 0.0f ? -some : some;
    most = size > most ? size : most;
    rest += some - some;  // 0, or NaN
  }
  return Sum(rest) == 0.0f ? Largest(most) : INFINITY;
}

inline void WriteFactors(Integers whole, bool fine, int at, Group& to) {
#if JAXSPEC_BYTE_PRODUCTS
  const Integers upper = fine ? (whole + 128) >> 8 : whole;
  *reinterpret_cast<SignedBytes*>(to.values + at) = __builtin_convertvector(upper, SignedBytes);
  *reinterpret_cast<SignedBytes*>(to.low + at) = __builtin_convertvector(fine ? whole - upper * 256 : Integers{}, SignedBytes);
#else
  for (int i = 0; i < kLanes; ++i) to.values[at + i / 4 * 4 + i % 2 * 2 + i % 4 / 2] = static_cast<Factor>(whole[i]);
#endif
}

inline void Round(const float* x, float most, bool fine, Group& to) {
  const float limit = fine ? kWide : kByte, inverse = most > 0.0f ? limit / most : 0.0f;
  to = Group{};
  to.fine = fine;
  // A scale of NaN makes the row NaN. Numbers too small for a scale are 0.
  if (!(most < INFINITY && inverse < INFINITY)) {
    to.scale = most < INFINITY ? 0.0f : NAN;
    return;
  }
  to.scale = most / limit;
  constexpr float kNearest = 12582912.0f;  // added to a number below 2^22 and taken away, rounds it to an integer
  for (int half = 0; half < 2; ++half) {
    Lanes total = {};
    for (int i = half * kGroup / 2; i < (half + 1) * kGroup / 2; i += kLanes) {
      const Lanes whole = (Read(x + i) * inverse + kNearest) - kNearest;
      total += whole;
      WriteFactors(__builtin_convertvector(whole, Integers), fine, i, to);
    }
    const float sum = Sum(total);  // of integers below 2^24 in all: exact
    to.whole[half] = static_cast<int32_t>(sum);
    to.sums[half] = to.scale * sum;
  }
}

// One row; which groups are fine depends on it alone.
inline void QuantizeRow(const float* x, int64_t groups, Group* to) {
  std::vector<float> most(groups);
  for (int64_t g = 0; g < groups; ++g) most[g] = LargestOf(x + g * kGroup);
  const int64_t count = (groups + kFine - 1) / kFine;
  std::vector<float> order = most;
  std::nth_element(order.begin(), order.begin() + (count - 1), order.end(), [](float a, float b) { return a > b; });
  const float least = order[count - 1];
  int64_t equal = count - std::count_if(most.begin(), most.end(), [&](float x) { return x > least; });
  for (int64_t g = 0; g < groups; ++g) {
    const bool fine = most[g] > least || (most[g] == least && equal-- > 0);
    Round(x + g * kGroup, most[g], fine, to[g]);
  }
}

}  // namespace jaxspec

#endif  // JAXSPEC_ACTIVATIONS_H_
