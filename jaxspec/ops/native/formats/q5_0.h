// Q5_0: d, 32 fifth bits, then 16 bytes, whose low nibbles come first.

#ifndef JAXSPEC_FORMATS_Q5_0_H_
#define JAXSPEC_FORMATS_Q5_0_H_

#include "../tiles.h"

namespace jaxspec {

struct Q5_0 {
  static constexpr char kName[] = "Q5_0";
  static constexpr int kInputs = 32, kBytes = 22, kBits = 5, kOffset = 16, kHalves = 1;
  static constexpr bool kFactors = false, kMinima = false;

  static void Read(const uint8_t* from, Block& to) {
    std::memcpy(&to.scale, from, 2);
    uint32_t fifth;
    std::memcpy(&fifth, from + 2, 4);
    for (int i = 0; i < 16; ++i) {
      to.codes[i] = (from[6 + i] & 15) | (fifth >> i & 1) << 4;
      to.codes[i + 16] = from[6 + i] >> 4 | (fifth >> (i + 16) & 1) << 4;
    }
  }
};

}  // namespace jaxspec

#endif  // JAXSPEC_FORMATS_Q5_0_H_
