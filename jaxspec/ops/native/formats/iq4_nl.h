// IQ4_NL: d, then 16 bytes of indices into a table, whose low nibbles come first.

#ifndef JAXSPEC_FORMATS_IQ4_NL_H_
#define JAXSPEC_FORMATS_IQ4_NL_H_

#include "../tiles.h"

namespace jaxspec {

struct IQ4_NL {
  static constexpr char kName[] = "IQ4_NL";
  static constexpr int kInputs = 32, kBytes = 18, kBits = 4, kOffset = kTableOffset, kHalves = 1;
  static constexpr bool kFactors = false, kMinima = false;
  static constexpr int8_t kTable[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

  static void Read(const uint8_t* from, Block& to) {
    std::memcpy(&to.scale, from, 2);
    ReadNibbles(from + 2, to.codes);
  }
};

}  // namespace jaxspec

#endif  // JAXSPEC_FORMATS_IQ4_NL_H_
