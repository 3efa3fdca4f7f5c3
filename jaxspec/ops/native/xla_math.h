// Exponentials, logarithms and sums that round as XLA's CPU compiler does, and noise made of them.
//
// XLA's polynomials, in its order: a product and the sum that it is added to are rounded once, if the processor can.

#ifndef JAXSPEC_XLA_MATH_H_
#define JAXSPEC_XLA_MATH_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "lanes.h"

namespace jaxspec {

inline float FromBits(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t ToBits(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Whether any lane of a mask is set.
inline bool Any(Integers mask) {
  uint64_t parts[kLanes / 2], found = 0;
  __builtin_memcpy(parts, &mask, sizeof mask);
  for (uint64_t part : parts) found |= part;
  return found != 0;
}

// The exponential of values up to 0; 0 below -87.8 and of NaN.
inline Lanes Exp(Lanes x) {
  x = x > -87.8f ? x : Lanes{} - 87.8f;
  const Lanes shifted = x * 1.44269504f + 0.5f;
  Lanes power = __builtin_convertvector(__builtin_convertvector(shifted, Integers), Lanes);
  power = power > shifted ? power - 1.0f : power;  // floor
  Lanes rest = x - power * 0.693359375f;
  rest = rest - power * -2.12194440e-4f;
  Lanes sum = rest * 1.9875691500e-4f + 1.3981999507e-3f;
  sum = sum * rest + 8.3334519073e-3f;
  sum = sum * rest + 4.1665795894e-2f;
  sum = sum * rest + 1.6666665459e-1f;
  sum = sum * rest + 0.5f;
  sum = sum * (rest * rest) + rest;
  const Integers bits = (__builtin_convertvector(power, Integers) + 127) << 23;
  return (sum + 1.0f) * reinterpret_cast<const Lanes&>(bits);
}

// The natural logarithm of a positive number.
inline float Log(float x) {
  const uint32_t bits = ToBits(std::max(x, std::numeric_limits<float>::min()));
  float power = static_cast<float>(static_cast<int32_t>(bits >> 23) - 127) + 1.0f;
  float part = FromBits((bits & 0x807FFFFFu) | 0x3F000000u);
  if (part < 0.707106781186547524f) {
    power -= 1.0f;
    part = (part - 1.0f) + part;
  } else {
    part -= 1.0f;
  }
  const float square = part * part, cube = square * part;
  float a = std::fma(part, 7.0376836292e-2f, -1.1514610310e-1f);
  float b = std::fma(part, -1.2420140846e-1f, 1.4249322787e-1f);
  float c = std::fma(part, 2.0000714765e-1f, -2.4999993993e-1f);
  a = std::fma(a, part, 1.1676998740e-1f);
  b = std::fma(b, part, -1.6668057665e-1f);
  c = std::fma(c, part, 3.3333331174e-1f);
  a = std::fma(std::fma(a, cube, b), cube, c);
  const float rest = std::fma(-0.5f, square, part) + std::fma(a, cube, power * -2.12194440e-4f);
  return std::fma(0.693359375f, power, rest);
}

// The logarithm of one plus a number above -1.
inline float Log1p(float x) {
  if (!(std::abs(x) < 0.41421356f)) return Log(x + 1.0f);
  const float square = x * x;
  float a = 4.5270000862e-5f, b = x + 15.0624208450f;
  for (float term : {4.9854102823e-1f, 6.5787325942e0f, 2.9911919328e1f, 6.0949667980e1f, 5.7112963590e1f,
                     2.0039553499e1f}) {
    a = std::fma(a, x, term);
  }
  for (float term : {8.3047565967e1f, 2.2176239823e2f, 3.0909872225e2f, 2.1642788614e2f, 6.0118660497e1f}) {
    b = std::fma(b, x, term);
  }
  return std::fma(-0.5f, square, square * x * (a / b)) + x;
}

// Uniforms in (0, 1) from 32 bits, and Gumbel noise, as in jaxspec/core/random.py.
inline Lanes Uniform(Words bits) {
  const Lanes found = (__builtin_convertvector(bits, Lanes) + 0.5f) * 0x1p-32f;
  return found < 1.0f - 0x1p-24f ? found : Lanes{} + (1.0f - 0x1p-24f);
}

inline float Gumbel(uint32_t bits) {
  const float uniform = std::min((static_cast<float>(bits) + 0.5f) * 0x1p-32f, 1.0f - 0x1p-24f);
  return -Log(-Log1p(-uniform));
}

// One or two sums of a row of nonnegative numbers, in the order of jaxspec/core/sums.py.
class OrderedSum {
 public:
  static int64_t LanesOf(int64_t count) {
    int64_t lanes = kNarrow;
    while (lanes * kMostSums < count) lanes *= 2;
    return lanes;
  }

  // `memory` holds twice `lanes` numbers.
  OrderedSum(int64_t lanes, float* memory) : lanes_(lanes), one_(memory), two_(memory + lanes) {}

  void Begin() { std::fill(one_, one_ + 2 * lanes_, 0.0f); }

  // Adds the numbers from `i` on, a multiple of `kLanes`.
  void Add(int64_t i, Lanes x) {
    float* to = one_ + (i & (lanes_ - 1));
    Write(to, Read(to) + x);
  }

  void Add(int64_t i, Lanes x, Lanes y) {
    Add(i, x);
    float* to = two_ + (i & (lanes_ - 1));
    Write(to, Read(to) + y);
  }

  std::pair<float, float> End() { return {Total(one_), Total(two_)}; }

 private:
  static constexpr int64_t kNarrow = 64, kMostSums = 32;

  float Total(float* x) const {
    for (int64_t width = lanes_; width > kNarrow;) {
      const int64_t lanes = LanesOf(width);
      for (int64_t start = lanes; start < width; start += lanes) {
        for (int64_t i = 0; i < lanes; ++i) x[i] += x[start + i];
      }
      width = lanes;
    }
    for (int64_t lanes = kNarrow / 2; lanes > 0; lanes /= 2) {
      for (int64_t i = 0; i < lanes; ++i) x[i] += x[i + lanes];
    }
    return x[0];
  }

  const int64_t lanes_;
  float *one_, *two_;
};

}  // namespace jaxspec

#endif  // JAXSPEC_XLA_MATH_H_
