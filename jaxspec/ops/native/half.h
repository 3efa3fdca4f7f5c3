// float16, widened to float32.

#ifndef JAXSPEC_HALF_H_
#define JAXSPEC_HALF_H_

#include <cstdint>

#include "lanes.h"

#if defined(__F16C__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace jaxspec {

inline Lanes WidenSome(const uint16_t* from) {
#if defined(__AVX512F__)
  return reinterpret_cast<Lanes>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
#elif defined(__F16C__)
  return reinterpret_cast<Lanes>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#else
  const Words bits = __builtin_convertvector(*reinterpret_cast<const Halves*>(from), Words);
  const Words exponent = bits & 0x7c00u;
  Words wide = ((bits & 0x7fffu) << 13) + (112u << 23);
  const Words next = wide + (1u << 23), top = wide + (112u << 23);
  // A subnormal number lacks the leading one, which 2^-14 takes away again.
  const Lanes small = reinterpret_cast<const Lanes&>(next) - 6.103515625e-05f;
  wide = exponent == 0u ? reinterpret_cast<const Words&>(small) : exponent == 0x7c00u ? top : wide;
  wide |= (bits & 0x8000u) << 16;
  return reinterpret_cast<const Lanes&>(wide);
#endif
}

// Widens `count` numbers.
inline void Widen(const uint16_t* from, int64_t count, float* to) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) Write(to + i, WidenSome(from + i));
  if (i == count) return;
  uint16_t rest[kLanes] = {};
  for (int64_t lane = 0; i + lane < count; ++lane) rest[lane] = from[i + lane];
  const Lanes last = WidenSome(rest);
  for (; i < count; ++i) to[i] = last[i % kLanes];
}

}  // namespace jaxspec

#endif  // JAXSPEC_HALF_H_
