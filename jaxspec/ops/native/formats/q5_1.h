// Q5_1: d, m, 32 fifth bits, then 16 bytes, whose low nibbles come first.

#ifndef JAXSPEC_FORMATS_Q5_1_H_
#define JAXSPEC_FORMATS_Q5_1_H_

#include "../tiles.h"

namespace jaxspec {

struct Q5_1 {
  static constexpr char kName[] = "Q5_1";
  static constexpr int kInputs = 32, kBytes = 24, kBits = 5, kOffset = 0, kHalves = 1;
  static constexpr bool kFactors = false, kMinima = true;

  static void Read(const uint8_t* from, Block& to) {
    std::memcpy(&to.scale, from, 2);
    std::memcpy(&to.minimum, from + 2, 2);
    uint32_t fifth;
    std::memcpy(&fifth, from + 4, 4);
    for (int i = 0; i < 16; ++i) {
      to.codes[i] = (from[8 + i] & 15) | (fifth >> i & 1) << 4;
      to.codes[i + 16] = from[8 + i] >> 4 | (fifth >> (i + 16) & 1) << 4;
    }
  }
};

}  // namespace jaxspec

#endif  // JAXSPEC_FORMATS_Q5_1_H_
