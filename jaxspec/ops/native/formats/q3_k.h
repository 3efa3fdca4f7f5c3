// Q3_K: 32 bytes of third bits, 64 of the other two, 12 of 16 factors of 6 bits, d.

#ifndef JAXSPEC_FORMATS_Q3_K_H_
#define JAXSPEC_FORMATS_Q3_K_H_

#include "../tiles.h"

namespace jaxspec {

struct Q3_K {
  static constexpr char kName[] = "Q3_K";
  static constexpr int kInputs = 256, kBytes = 110, kBits = 3, kOffset = 4, kHalves = 2;
  static constexpr bool kFactors = true, kMinima = false;

  static void Read(const uint8_t* from, Block& to) {
    std::memcpy(&to.scale, from + 108, 2);
    const uint8_t* factors = from + 96;
    for (int i = 0; i < 16; ++i) {
      const int low = i < 8 ? factors[i] & 15 : factors[i - 8] >> 4;
      to.factors[i] = static_cast<int8_t>((low | (factors[8 + i % 4] >> i / 4 * 2 & 3) << 4) - 32);
    }
    for (int i = 0; i < 256; ++i) {
      const int low = from[32 + i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
      to.codes[i] = static_cast<uint8_t>(low | (from[i % 32] >> i / 32 & 1) << 2);
    }
  }
};

}  // namespace jaxspec

#endif  // JAXSPEC_FORMATS_Q3_K_H_
