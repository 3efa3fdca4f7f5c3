// Q2_K: 16 bytes of a factor and a minimum for 16 inputs each, 64 bytes of codes, d, dmin.

#ifndef JAXSPEC_FORMATS_Q2_K_H_
#define JAXSPEC_FORMATS_Q2_K_H_

#include "../tiles.h"

namespace jaxspec {

struct Q2_K {
  static constexpr char kName[] = "Q2_K";
  static constexpr int kInputs = 256, kBytes = 84, kBits = 2, kOffset = 0, kHalves = 2;
  static constexpr bool kFactors = true, kMinima = true;

  static void Read(const uint8_t* from, Block& to) {
    std::memcpy(&to.scale, from + 80, 2);
    std::memcpy(&to.minimum, from + 82, 2);
    for (int i = 0; i < 16; ++i) {
      to.factors[i] = static_cast<int8_t>(from[i] & 15);
      to.minima[i] = static_cast<int8_t>(-(from[i] >> 4));
    }
    for (int i = 0; i < 256; ++i) to.codes[i] = from[16 + i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
  }
};

}  // namespace jaxspec

#endif  // JAXSPEC_FORMATS_Q2_K_H_
