// Random bits of JAX's threefry keys, by their place in an array: those of `jax.random.bits`.

#ifndef JAXSPEC_THREEFRY_H_
#define JAXSPEC_THREEFRY_H_

#include <cstdint>

#include "lanes.h"

namespace jaxspec {

// One step of rounds on counters of 32 bits: integers, or vectors of them.
template <typename Word>
inline void Rounds(Word& a, Word& b, const int (&turns)[4]) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    a += b;
    b = (b << turns[i]) | (b >> (32 - turns[i]));
    b ^= a;
  }
}

// The bits of one array of `count` words.
struct Threefry {
  uint32_t first, second;  // the key
  int64_t count;
  bool partitionable;  // `jax_threefry_partitionable`

  uint32_t At(int64_t place) const {
    Words places = Words{} + static_cast<uint32_t>(place);
    return At(places)[0];
  }

  Words At(Words places) const {
    if (partitionable) {
      Words high = {}, low = places;
      Hash(high, low);
      return high ^ low;
    }
    // Pairs of the first half and the second, of which the last may lack its partner.
    const uint32_t half = static_cast<uint32_t>((count + 1) / 2), size = static_cast<uint32_t>(count);
    const Integers early = Integers(places < half);
    Words a = early ? places : places - half, b = a + half;
    b = b < size ? b : Words{};
    Hash(a, b);
    return early ? a : b;
  }

 private:
  void Hash(Words& a, Words& b) const {
    constexpr int kEven[4] = {13, 15, 26, 6}, kOdd[4] = {17, 29, 16, 24};
    const uint32_t keys[3] = {first, second, first ^ second ^ 0x1BD11BDAu};
    a += keys[0];
    b += keys[1];
#pragma GCC unroll 5
    for (uint32_t i = 0; i < 5; ++i) {
      if (i % 2 == 0) Rounds(a, b, kEven);
      else Rounds(a, b, kOdd);
      a += keys[(i + 1) % 3];
      b += keys[(i + 2) % 3] + i + 1;
    }
  }
};

}  // namespace jaxspec

#endif  // JAXSPEC_THREEFRY_H_
