// Q5_K: d, dmin, 12 bytes of 8 factors and minima of 6 bits, 32 bytes of fifth bits, 128 of the other four.

#ifndef JAXSPEC_FORMATS_Q5_K_H_
#define JAXSPEC_FORMATS_Q5_K_H_

#include "../tiles.h"
#include "six_bits.h"

namespace jaxspec {

struct Q5_K {
  static constexpr char kName[] = "Q5_K";
  static constexpr int kInputs = 256, kBytes = 176, kBits = 5, kOffset = 0, kHalves = 1;
  static constexpr bool kFactors = true, kMinima = true;

  static void Read(const uint8_t* from, Block& to) {
    std::memcpy(&to.scale, from, 2);
    std::memcpy(&to.minimum, from + 2, 2);
    ReadSixBits(from + 4, to);
    for (int i = 0; i < 256; ++i) {
      const int low = from[48 + i / 64 * 32 + i % 32] >> i % 64 / 32 * 4 & 15;
      to.codes[i] = static_cast<uint8_t>(low | (from[16 + i % 32] >> i / 32 & 1) << 4);
    }
  }
};

}  // namespace jaxspec

#endif  // JAXSPEC_FORMATS_Q5_K_H_
