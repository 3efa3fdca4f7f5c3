// Q8_0: d, then 32 signed bytes.

#ifndef JAXSPEC_FORMATS_Q8_0_H_
#define JAXSPEC_FORMATS_Q8_0_H_

#include "../tiles.h"

namespace jaxspec {

struct Q8_0 {
  static constexpr char kName[] = "Q8_0";
  static constexpr int kInputs = 32, kBytes = 34, kBits = 8, kOffset = 128, kHalves = 1;
  static constexpr bool kFactors = false, kMinima = false;

  static void Read(const uint8_t* from, Block& to) {
    std::memcpy(&to.scale, from, 2);
    for (int i = 0; i < 32; ++i) to.codes[i] = from[2 + i] ^ 128;
  }
};

}  // namespace jaxspec

#endif  // JAXSPEC_FORMATS_Q8_0_H_
