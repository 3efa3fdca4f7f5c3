// MXFP4: a power of two, then 16 bytes of indices into a table of twice the values, whose low nibbles come first.

#ifndef JAXSPEC_FORMATS_MXFP4_H_
#define JAXSPEC_FORMATS_MXFP4_H_

#include "../tiles.h"

namespace jaxspec {

struct MXFP4 {
  static constexpr char kName[] = "MXFP4";
  static constexpr int kInputs = 32, kBytes = 17, kBits = 4, kOffset = kTableOffset, kHalves = 1;
  static constexpr bool kFactors = false, kMinima = false;
  static constexpr int8_t kTable[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

  static void Read(const uint8_t* from, Block& to) {
    // 2^(from[0] - 128) in half-precision; a power out of its range is rejected like an infinite one.
    const int exponent = from[0] - 128;
    to.scale = exponent > 15 || exponent < -24 ? 0x7c00 : exponent < -14 ? 1 << (exponent + 24) : (exponent + 15) << 10;
    ReadNibbles(from + 1, to.codes);
  }
};

}  // namespace jaxspec

#endif  // JAXSPEC_FORMATS_MXFP4_H_
