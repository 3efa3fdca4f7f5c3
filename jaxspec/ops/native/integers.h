// Vectors of bytes and of 32-bit integers: products of unsigned codes with signed activations, and half-precision.

#ifndef JAXSPEC_INTEGERS_H_
#define JAXSPEC_INTEGERS_H_

#include <cstdint>
#include <cstring>

#include "lanes.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace jaxspec {

// Four codes, of consecutive inputs, in each lane.
typedef uint32_t Codes __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(__ARM_FEATURE_MATMUL_INT8)
#define JAXSPEC_BYTE_PRODUCTS 1
typedef int8_t Factor;  // of an activation
#else
#define JAXSPEC_BYTE_PRODUCTS 0
typedef int16_t Factor;
#endif

inline Codes ReadCodes(const uint8_t* from) { return *reinterpret_cast<const Codes*>(from); }

// a * b + c, rounded once if the processor can: the compiler would contract this or not, depending on the context.
inline Lanes MulAdd(Lanes a, Lanes b, Lanes c) {
#if defined(__AVX512F__)
  return reinterpret_cast<Lanes>(_mm512_fmadd_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b),
                                                 reinterpret_cast<__m512>(c)));
#elif defined(__FMA__)
  return reinterpret_cast<Lanes>(_mm256_fmadd_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b),
                                                 reinterpret_cast<__m256>(c)));
#elif defined(__aarch64__)
  float32x4_t x[2], y[2], sums[2];
  std::memcpy(x, &a, sizeof a);
  std::memcpy(y, &b, sizeof b);
  std::memcpy(sums, &c, sizeof c);
  for (int i = 0; i < 2; ++i) sums[i] = vfmaq_f32(sums[i], x[i], y[i]);
  std::memcpy(&c, sums, sizeof c);
  return c;
#else
  return a * b + c;
#endif
}

inline Lanes Broadcast(float x) { return x - Lanes{}; }  // as it is: adding zeros would take a product's time

// Adds to each lane the products of its four codes with four activations: bytes in order, or 16-bit numbers, even ones
// first.
inline Integers AddProducts(Integers sums, Codes codes, const Factor* x) {
#if JAXSPEC_BYTE_PRODUCTS
  int32_t four;
  std::memcpy(&four, x, sizeof four);
#if defined(__AVX512VNNI__) && defined(__AVX512F__)
  return reinterpret_cast<Integers>(_mm512_dpbusd_epi32(reinterpret_cast<__m512i>(sums), reinterpret_cast<__m512i>(codes),
                                                        _mm512_set1_epi32(four)));
#elif defined(__AVXVNNI__)
  return reinterpret_cast<Integers>(_mm256_dpbusd_avx_epi32(reinterpret_cast<__m256i>(sums),
                                                            reinterpret_cast<__m256i>(codes), _mm256_set1_epi32(four)));
#else
  int32x4_t parts[2];
  uint8x16_t bytes[2];
  std::memcpy(parts, &sums, sizeof sums);
  std::memcpy(bytes, &codes, sizeof codes);
  const int8x16_t factors = vreinterpretq_s8_s32(vdupq_n_s32(four));
  for (int i = 0; i < 2; ++i) parts[i] = vusdotq_s32(parts[i], bytes[i], factors);
  std::memcpy(&sums, parts, sizeof sums);
  return sums;
#endif
#else
  int32_t even, odd;
  std::memcpy(&even, x, sizeof even);
  std::memcpy(&odd, x + 2, sizeof odd);
  const Codes low = codes & 0x00ff00ffu, high = (codes >> 8) & 0x00ff00ffu;
#if defined(__AVX512BW__)
  const auto pairs = [](Codes c, int32_t two) {
    return reinterpret_cast<Integers>(_mm512_madd_epi16(reinterpret_cast<__m512i>(c), _mm512_set1_epi32(two)));
  };
  return sums + pairs(low, even) + pairs(high, odd);
#elif defined(__AVX2__) && !defined(__AVX512F__)
  const auto pairs = [](Codes c, int32_t two) {
    return reinterpret_cast<Integers>(_mm256_madd_epi16(reinterpret_cast<__m256i>(c), _mm256_set1_epi32(two)));
  };
  return sums + pairs(low, even) + pairs(high, odd);
#else
  const auto part = [](Codes c) { return __builtin_convertvector(c & 0xffffu, Integers); };
  return sums + part(low) * x[0] + part(low >> 16) * x[1] + part(high) * x[2] + part(high >> 16) * x[3];
#endif
#endif
}

// Widens half-precision numbers without intermediate denormals, which XLA's threads flush to 0.
inline Lanes ReadHalves(const uint8_t* from) {
#if defined(__AVX512F__)
  return reinterpret_cast<Lanes>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
#elif defined(__F16C__)
  return reinterpret_cast<Lanes>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#else
  const Words half = __builtin_convertvector(*reinterpret_cast<const Halves*>(from), Words);
  Words normal = ((half & 0x7fffu) << 13) + (112u << 23);
  const Lanes small = __builtin_convertvector(half & 0x3ffu, Lanes) * 0x1p-24f;
  const Lanes size = (half & 0x7c00u) == 0 ? small : reinterpret_cast<Lanes&>(normal);
  Words bits;
  std::memcpy(&bits, &size, sizeof bits);
  bits |= (half & 0x8000u) << 16;
  return reinterpret_cast<Lanes&>(bits);
#endif
}

typedef int8_t SignedBytes __attribute__((vector_size(kLanes), aligned(1), may_alias));

// Reads one signed byte per lane.
inline Lanes ReadBytes(const uint8_t* from) {
#if defined(__AVX512F__)
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return reinterpret_cast<Lanes>(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
#else
  return __builtin_convertvector(*reinterpret_cast<const SignedBytes*>(from), Lanes);
#endif
}

}  // namespace jaxspec

#endif  // JAXSPEC_INTEGERS_H_
