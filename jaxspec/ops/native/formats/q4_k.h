// Q4_K: d, dmin, 12 bytes of 8 factors and minima of 6 bits, 128 bytes of codes.

#ifndef JAXSPEC_FORMATS_Q4_K_H_
#define JAXSPEC_FORMATS_Q4_K_H_

#include "../tiles.h"
#include "six_bits.h"

namespace jaxspec {

struct Q4_K {
  static constexpr char kName[] = "Q4_K";
  static constexpr int kInputs = 256, kBytes = 144, kBits = 4, kOffset = 0, kHalves = 1;
  static constexpr bool kFactors = true, kMinima = true;

  static void Read(const uint8_t* from, Block& to) {
    std::memcpy(&to.scale, from, 2);
    std::memcpy(&to.minimum, from + 2, 2);
    ReadSixBits(from + 4, to);
    for (int i = 0; i < 256; ++i) to.codes[i] = from[16 + i / 64 * 32 + i % 32] >> i % 64 / 32 * 4 & 15;
  }
};

}  // namespace jaxspec

#endif  // JAXSPEC_FORMATS_Q4_K_H_
