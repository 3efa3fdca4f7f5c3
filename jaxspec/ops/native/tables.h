// Formats whose codes are indices into a table of 16 values, looked up as bytes before the product.

#ifndef JAXSPEC_TABLES_H_
#define JAXSPEC_TABLES_H_

#include <cstdint>
#include <type_traits>

#include "integers.h"

namespace jaxspec {

constexpr int kTableOffset = 128;  // added to each value

// The table of a format without one.
template <typename Format, typename = void>
struct Table {
  static Codes Look(Codes codes) { return codes; }
  static int Look(int code) { return code; }
};

template <typename Format>
struct Table<Format, std::void_t<decltype(Format::kTable)>> {
  static_assert(Format::kBits == 4 && Format::kOffset == kTableOffset, "values of a table are kept with this offset");

  static int Look(int code) { return Format::kTable[code] + kTableOffset; }

  static Codes Look(Codes codes) {
    alignas(16) uint8_t table[16];
    for (int i = 0; i < 16; ++i) table[i] = static_cast<uint8_t>(Format::kTable[i] + kTableOffset);
#if defined(__AVX512BW__)
    const __m512i values = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(table)));
    return reinterpret_cast<Codes>(_mm512_shuffle_epi8(values, reinterpret_cast<__m512i>(codes)));
#elif defined(__AVX2__) && !defined(__AVX512F__)
    const __m256i values = _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(table)));
    return reinterpret_cast<Codes>(_mm256_shuffle_epi8(values, reinterpret_cast<__m256i>(codes)));
#else
    uint8_t bytes[sizeof codes];
    std::memcpy(bytes, &codes, sizeof codes);
    for (uint8_t& byte : bytes) byte = table[byte];
    std::memcpy(&codes, bytes, sizeof codes);
    return codes;
#endif
  }
};

}  // namespace jaxspec

#endif  // JAXSPEC_TABLES_H_
