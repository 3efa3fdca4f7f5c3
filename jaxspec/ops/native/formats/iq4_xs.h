// IQ4_XS: d, the upper two bits of 8 factors, the lower four, then 128 bytes of indices into a table.

#ifndef JAXSPEC_FORMATS_IQ4_XS_H_
#define JAXSPEC_FORMATS_IQ4_XS_H_

#include "../tiles.h"

namespace jaxspec {

struct IQ4_XS {
  static constexpr char kName[] = "IQ4_XS";
  static constexpr int kInputs = 256, kBytes = 136, kBits = 4, kOffset = kTableOffset, kHalves = 1;
  static constexpr bool kFactors = true, kMinima = false;
  static constexpr int8_t kTable[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

  static void Read(const uint8_t* from, Block& to) {
    std::memcpy(&to.scale, from, 2);
    uint16_t upper;
    std::memcpy(&upper, from + 2, 2);
    for (int i = 0; i < 8; ++i) {
      to.factors[i] = static_cast<int8_t>(((from[4 + i / 2] >> i % 2 * 4 & 15) | (upper >> 2 * i & 3) << 4) - 32);
    }
    for (int i = 0; i < 256; ++i) to.codes[i] = from[8 + i / 32 * 16 + i % 16] >> i % 32 / 16 * 4 & 15;
  }
};

}  // namespace jaxspec

#endif  // JAXSPEC_FORMATS_IQ4_XS_H_
