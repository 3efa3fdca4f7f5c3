// Q4_1: d, m, then 16 bytes, whose low nibbles come first.

#ifndef JAXSPEC_FORMATS_Q4_1_H_
#define JAXSPEC_FORMATS_Q4_1_H_

#include "../tiles.h"

namespace jaxspec {

struct Q4_1 {
  static constexpr char kName[] = "Q4_1";
  static constexpr int kInputs = 32, kBytes = 20, kBits = 4, kOffset = 0, kHalves = 1;
  static constexpr bool kFactors = false, kMinima = true;

  static void Read(const uint8_t* from, Block& to) {
    std::memcpy(&to.scale, from, 2);
    std::memcpy(&to.minimum, from + 2, 2);
    ReadNibbles(from + 4, to.codes);
  }
};

}  // namespace jaxspec

#endif  // JAXSPEC_FORMATS_Q4_1_H_
