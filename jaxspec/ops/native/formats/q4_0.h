// Q4_0: d, then 16 bytes, whose low nibbles come first.

#ifndef JAXSPEC_FORMATS_Q4_0_H_
#define JAXSPEC_FORMATS_Q4_0_H_

#include "../tiles.h"

namespace jaxspec {

struct Q4_0 {
  static constexpr char kName[] = "Q4_0";
  static constexpr int kInputs = 32, kBytes = 18, kBits = 4, kOffset = 8, kHalves = 1;
  static constexpr bool kFactors = false, kMinima = false;

  static void Read(const uint8_t* from, Block& to) {
    std::memcpy(&to.scale, from, 2);
    ReadNibbles(from + 2, to.codes);
  }
};

}  // namespace jaxspec

#endif  // JAXSPEC_FORMATS_Q4_0_H_
