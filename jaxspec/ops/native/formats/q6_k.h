// Q6_K: 128 bytes of four bits, 64 of the other two, 16 signed factors, d.

#ifndef JAXSPEC_FORMATS_Q6_K_H_
#define JAXSPEC_FORMATS_Q6_K_H_

#include "../tiles.h"

namespace jaxspec {

struct Q6_K {
  static constexpr char kName[] = "Q6_K";
  static constexpr int kInputs = 256, kBytes = 210, kBits = 6, kOffset = 32, kHalves = 2;
  static constexpr bool kFactors = true, kMinima = false;

  static void Read(const uint8_t* from, Block& to) {
    std::memcpy(&to.scale, from + 208, 2);
    std::memcpy(to.factors, from + 192, 16);
    for (int i = 0; i < 256; ++i) {
      const int low = from[i / 128 * 64 + i % 64] >> i % 128 / 64 * 4 & 15;
      to.codes[i] = static_cast<uint8_t>(low | (from[128 + i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3) << 4);
    }
  }
};

}  // namespace jaxspec

#endif  // JAXSPEC_FORMATS_Q6_K_H_
