// Shared by Q4_K and Q5_K: 8 factors and minima of 6 bits each in 12 bytes.

#ifndef JAXSPEC_FORMATS_SIX_BITS_H_
#define JAXSPEC_FORMATS_SIX_BITS_H_

#include "../tiles.h"

namespace jaxspec {

inline void ReadSixBits(const uint8_t* from, Block& to) {
  for (int i = 0; i < 4; ++i) {
    to.factors[i] = static_cast<int8_t>(from[i] & 63);
    to.minima[i] = static_cast<int8_t>(-(from[i + 4] & 63));
    to.factors[i + 4] = static_cast<int8_t>((from[i + 8] & 15) | from[i] >> 6 << 4);
    to.minima[i + 4] = static_cast<int8_t>(-(from[i + 8] >> 4 | from[i + 4] >> 6 << 4));
  }
}

}  // namespace jaxspec

#endif  // JAXSPEC_FORMATS_SIX_BITS_H_
