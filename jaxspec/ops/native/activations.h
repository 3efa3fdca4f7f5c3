// Activations in integers, with a scale for each 32: bytes; and 16 bits in the quarter of a row's groups that are largest,
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

inline float LargestOf(const float* x) {
  float most = 0.0f;
  for (int i = 0; i < kGroup; ++i) most = std::max(most, std::fabs(x[i]));
  return most;
}

inline void Round(const float* x, float most, bool fine, Group& to) {
  const float limit = fine ? kWide : kByte;
  to.scale = most / limit;
  const float inverse = most > 0.0f ? limit / most : 0.0f;
  to.fine = fine;
  int32_t whole[kGroup];
  // An activation that is not finite makes a scale that is not, and any integers do.
  const bool finite = most <= 3.4e38f && inverse <= 3.4e38f;
  for (int i = 0; i < kGroup; ++i) whole[i] = finite ? static_cast<int32_t>(std::nearbyint(x[i] * inverse)) : 1;
  if (!finite) to.scale = most <= 3.4e38f ? 0.0f : NAN;
  for (int half = 0; half < 2; ++half) {
    int32_t sum = 0;
    for (int i = 0; i < kGroup / 2; ++i) sum += whole[half * kGroup / 2 + i];
    to.whole[half] = sum;
    to.sums[half] = to.scale * static_cast<float>(sum);
  }
  for (int i = 0; i < kGroup; ++i) {
#if JAXSPEC_BYTE_PRODUCTS
    const int32_t upper = (whole[i] + 128) >> 8;
    to.values[i] = static_cast<Factor>(fine ? upper : whole[i]);
    to.low[i] = static_cast<Factor>(fine ? whole[i] - upper * 256 : 0);
#else
    to.values[i / 4 * 4 + i % 2 * 2 + i % 4 / 2] = static_cast<Factor>(whole[i]);
#endif
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
