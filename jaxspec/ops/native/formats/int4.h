// INT4: not a GGML format, but the contents of GPTQ, AWQ and compressed-tensors for 32 inputs: d, an integer zero, then
// 16 bytes, whose low nibbles come first.

#ifndef JAXSPEC_FORMATS_INT4_H_
#define JAXSPEC_FORMATS_INT4_H_

#include "../tiles.h"

namespace jaxspec {

struct INT4 {
  static constexpr char kName[] = "INT4";
  static constexpr int kInputs = 32, kBytes = 19, kBits = 4, kOffset = 0, kHalves = 1;
  static constexpr bool kFactors = true, kMinima = true;

  static void Read(const uint8_t* from, Block& to) {
    std::memcpy(&to.scale, from, 2);
    to.minimum = to.scale;
    to.factors[0] = 1;
    to.minima[0] = static_cast<int8_t>(-from[2]);
    ReadNibbles(from + 3, to.codes);
  }
};

}  // namespace jaxspec

#endif  // JAXSPEC_FORMATS_INT4_H_
