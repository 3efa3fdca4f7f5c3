// Activations as integers, with a scale for each 32: bytes, and 16 bits in the largest eighth of a row's groups, where
// rounding to bytes would lose the most.

#ifndef JAXSPEC_ACTIVATIONS_H_
#define JAXSPEC_ACTIVATIONS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "integers.h"

namespace jaxspec {

constexpr int kGroup = 32;  // inputs that share a scale
constexpr int kFine = 8;    // one of this number of groups has 16 bits
constexpr float kByte = 127.0f, kWide = 127.0f * 256.0f;

struct alignas(16) Group {
#if JAXSPEC_BYTE_PRODUCTS
  Factor values[kGroup];  // or the upper bytes of 16 bits
  Factor low[kGroup];     // and the lower ones, signed
#else
  Factor values[kGroup];  // of each four, the even ones, then the odd ones
#endif
  float scale;
  float sums[2];     // of each half's values, times the scale
  int32_t whole[2];  // of each half's integers
  int32_t fine;
  float sum;         // of `sums`
  int32_t all;       // of `whole`
};

// Magnitudes as integers, which sort alike; NaN is the largest.
struct Larger {
  Lanes operator()(Lanes a, Lanes b) const {
    const Integers x = reinterpret_cast<Integers>(a), y = reinterpret_cast<Integers>(b);
    return reinterpret_cast<Lanes>(x > y ? x : y);
  }
};

inline Lanes Magnitudes(const float* x) {
  return reinterpret_cast<Lanes>(reinterpret_cast<Integers>(Read(x)) & 0x7fffffff);
}

// The largest magnitudes of kLanes groups; past the last one, repeats it.
inline Lanes LargestOf(const float* x, int64_t groups) {
  Lanes largest[kLanes];
  for (int64_t g = 0; g < kLanes; ++g) {
    const float* at = x + std::min(g, groups - 1) * kGroup;
    largest[g] = Magnitudes(at);
    for (int i = kLanes; i < kGroup; i += kLanes) largest[g] = Larger()(largest[g], Magnitudes(at + i));
  }
  return FoldAll<kLanes, kLanes, Larger>(largest);
}

inline void WriteFactors(Integers whole, bool fine, int at, Group& to) {
#if JAXSPEC_BYTE_PRODUCTS
  const Integers upper = fine ? (whole + 128) >> 8 : whole, lower = fine ? whole - upper * 256 : Integers{};
  *reinterpret_cast<SignedBytes*>(to.values + at) = __builtin_convertvector(upper, SignedBytes);
  *reinterpret_cast<SignedBytes*>(to.low + at) = __builtin_convertvector(lower, SignedBytes);
#else
  for (int i = 0; i < kLanes; ++i) to.values[at + i / 4 * 4 + i % 2 * 2 + i % 4 / 2] = static_cast<Factor>(whole[i]);
#endif
}

// Rounds up to kLanes groups.
inline void Round(const float* x, const float* most, const int32_t* fine, int64_t groups, Group* to) {
  constexpr float kNearest = 12582912.0f;  // adding and subtracting it rounds a number below 2^22 to an integer
  Lanes totals[2][kLanes] = {};
  for (int64_t g = 0; g < groups; ++g, x += kGroup) {
    const float limit = fine[g] ? kWide : kByte, inverse = most[g] > 0.0f ? limit / most[g] : 0.0f;
    // A scale of NaN makes the row NaN. Numbers too small for a scale are 0.
    const bool usable = most[g] < INFINITY && inverse < INFINITY;
    to[g].scale = usable ? most[g] / limit : most[g] < INFINITY ? 0.0f : NAN;
    to[g].fine = fine[g];
    for (int i = 0; i < kGroup; i += kLanes) {
      const Lanes whole = usable ? (Kept(Read(x + i) * inverse) + kNearest) - kNearest : Lanes{};
      totals[2 * i / kGroup][g] += whole;
      WriteFactors(__builtin_convertvector(whole, Integers), fine[g], i, to[g]);
    }
  }
  for (int half = 0; half < 2; ++half) {
    float sums[kLanes];  // of integers below 2^24 in all: exact
    Write(sums, FoldAll<kLanes>(totals[half]));
    for (int64_t g = 0; g < groups; ++g) {
      to[g].whole[half] = static_cast<int32_t>(sums[g]);
      to[g].sums[half] = to[g].scale * sums[g];
    }
  }
  for (int64_t g = 0; g < groups; ++g) {
    to[g].sum = to[g].sums[0] + to[g].sums[1];
    to[g].all = to[g].whole[0] + to[g].whole[1];
  }
}

// Quantizes one row; the choice of fine groups depends only on it.
inline void QuantizeRow(const float* x, int64_t groups, Group* to) {
  static thread_local std::vector<float> most;
  static thread_local std::vector<int32_t> fine, order;
  most.resize(groups + kLanes);
  fine.resize(groups);
  order.resize(groups);
  for (int64_t g = 0; g < groups; g += kLanes) Write(&most[g], LargestOf(x + g * kGroup, groups - g));
  std::memcpy(order.data(), most.data(), groups * sizeof(float));
  const int64_t count = (groups + kFine - 1) / kFine;
  std::nth_element(order.begin(), order.begin() + (count - 1), order.end(), std::greater<int32_t>());
  const int32_t least = order[count - 1];
  int64_t equal = count - std::count_if(order.begin(), order.begin() + count, [=](int32_t x) { return x > least; });
  for (int64_t g = 0; g < groups; ++g) {
    int32_t size;
    std::memcpy(&size, &most[g], sizeof size);
    fine[g] = size > least || (size == least && equal-- > 0);
  }
  for (int64_t g = 0; g < groups; g += kLanes) {
    Round(x + g * kGroup, &most[g], &fine[g], std::min<int64_t>(kLanes, groups - g), to + g);
  }
}

}  // namespace jaxspec

#endif  // JAXSPEC_ACTIVATIONS_H_
