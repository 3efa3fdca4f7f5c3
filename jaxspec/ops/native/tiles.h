// Stored weights, repacked: one block of inputs of kLanes outputs is a tile, and each output is a lane of it.
//
//     tile  codes of group 0, 1, ...    planes of 4, 2 and 1 bits, or bytes; a group is 32 inputs
//           factors of each group       one byte per lane, for 32 or for 16 inputs (if the format has them)
//           minima of each group        likewise
//           scale, minimum              half-precision, one per lane, of the block
//
// value = scale * factor * (code - offset) + minimum * (its factor)

#ifndef JAXSPEC_TILES_H_
#define JAXSPEC_TILES_H_

#include <cstdint>
#include <cstring>

#include "activations.h"
#include "integers.h"
#include "tables.h"

namespace jaxspec {

constexpr int kVectors = kGroup / 4;       // vectors of codes in a group
constexpr int kVectorBytes = 4 * kLanes;
constexpr int kMostInputs = 256;          // inputs of a block

// A block of one output, read from a file.
struct Block {
  uint8_t codes[kMostInputs];
  uint16_t scale, minimum;                 // half-precision
  int8_t factors[kMostInputs / 16];
  int8_t minima[kMostInputs / 16];
};

// 32 codes of 4 bits in 16 bytes, whose low nibbles come first.
inline void ReadNibbles(const uint8_t* from, uint8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = from[i] & 15;
    codes[i + 16] = from[i] >> 4;
  }
}

inline bool IsFinite(uint16_t half) { return (half & 0x7c00) != 0x7c00; }

// Codes of kBits in planes: the plane's bits of a group's vectors are adjacent in a byte.
template <int kBits>
struct Planes {
  static constexpr int kFour = kBits == 4 || kBits == 5 || kBits == 6, kTwo = kBits == 2 || kBits == 3 || kBits == 6;
  static constexpr int kOne = kBits == 3 || kBits == 5;
  static_assert(kBits == 8 || 4 * kFour + 2 * kTwo + kOne == kBits, "no planes for so many bits");
  static constexpr int kBytes = kVectorBytes * kBits;  // of a group

  static void Write(const uint8_t (*codes)[kVectorBytes], uint8_t* to) {
    if constexpr (kBits == 8) {
      std::memcpy(to, codes, kBytes);
    } else {
      std::memset(to, 0, kBytes);
      for (int v = 0; v < kVectors; ++v) {
        for (int i = 0; i < kVectorBytes; ++i) {
          const int code = codes[v][i];
          uint8_t* at = to + i;
          if constexpr (kFour) at[v % 4 * kVectorBytes] |= (code & 15) << v / 4 * 4;
          if constexpr (kFour) at += 4 * kVectorBytes;
          constexpr int shift = kFour ? 4 : 0;
          if constexpr (kTwo) at[v / 4 * kVectorBytes] |= (code >> shift & 3) << v % 4 * 2;
          if constexpr (kTwo) at += 2 * kVectorBytes;
          if constexpr (kOne) at[0] |= (code >> (kBits - 1) & 1) << v;
        }
      }
    }
  }

  static inline __attribute__((always_inline)) void Read(const uint8_t* from, Codes* codes) {
    if constexpr (kBits == 8) {
      for (int v = 0; v < kVectors; ++v) codes[v] = ReadCodes(from + v * kVectorBytes);
      return;
    }
    if constexpr (kFour) {
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) {
        const Codes both = ReadCodes(from + v * kVectorBytes);
        codes[v] = both & 0x0f0f0f0fu;
        codes[v + 4] = (both >> 4) & 0x0f0f0f0fu;
      }
      from += 4 * kVectorBytes;
    }
    if constexpr (kTwo) {
      constexpr int shift = kFour ? 4 : 0;
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        const Codes four = ReadCodes(from + v / 4 * kVectorBytes);
        const int down = v % 4 * 2;
        const Codes two = (down >= shift ? four >> (down - shift) : four << (shift - down)) & (0x03030303u << shift);
        codes[v] = kFour ? codes[v] | two : two;
      }
      from += 2 * kVectorBytes;
    }
    if constexpr (kOne) {
      constexpr int shift = kBits - 1;
      const Codes bits = ReadCodes(from);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        codes[v] |= (v >= shift ? bits >> (v - shift) : bits << (shift - v)) & (0x01010101u << shift);
      }
    }
  }

  static int One(const uint8_t* from, int vector, int byte) {
    if constexpr (kBits == 8) return from[vector * kVectorBytes + byte];
    int code = 0;
    from += byte;
    if constexpr (kFour) code = from[vector % 4 * kVectorBytes] >> vector / 4 * 4 & 15;
    if constexpr (kFour) from += 4 * kVectorBytes;
    if constexpr (kTwo) code |= (from[vector / 4 * kVectorBytes] >> vector % 4 * 2 & 3) << (kFour ? 4 : 0);
    if constexpr (kTwo) from += 2 * kVectorBytes;
    if constexpr (kOne) code |= (from[0] >> vector & 1) << (kBits - 1);
    return code;
  }
};

// The offsets of the parts of a format's tile.
template <typename Format>
struct Tile {
  using Codes = Planes<Format::kBits>;
  static constexpr int kGroups = Format::kInputs / kGroup;
  static constexpr int kFactors = kGroups * Format::kHalves;  // per lane
  static constexpr int kFactorsAt = kGroups * Codes::kBytes;
  static constexpr int kMinimaAt = kFactorsAt + (Format::kFactors ? kFactors * kLanes : 0);
  static constexpr int kScaleAt = kMinimaAt + (Format::kFactors && Format::kMinima ? kFactors * kLanes : 0);
  static constexpr int kMinimumAt = kScaleAt + 2 * kLanes;
  static constexpr int kBytes = kMinimumAt + (Format::kMinima ? 2 * kLanes : 0);

  // Repacks one block of kLanes outputs; a null pointer is a missing output. Returns the number of blocks whose scale
  // or minimum is not finite.
  static int Pack(const uint8_t* const* blocks, uint8_t* to) {
    static thread_local uint8_t codes[kGroups][kVectors][kVectorBytes];
    std::memset(codes, 0, sizeof codes);
    std::memset(to + kFactorsAt, 0, kBytes - kFactorsAt);
    int infinite = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
      if (!blocks[lane]) continue;
      Block block;
      Format::Read(blocks[lane], block);
      for (int i = 0; i < Format::kInputs; ++i) {
        codes[i / kGroup][i % kGroup / 4][lane * 4 + i % 4] = block.codes[i];
      }
      for (int i = 0; i < kFactors && Format::kFactors; ++i) {
        to[kFactorsAt + i * kLanes + lane] = static_cast<uint8_t>(block.factors[i]);
        if (Format::kMinima) to[kMinimaAt + i * kLanes + lane] = static_cast<uint8_t>(block.minima[i]);
      }
      std::memcpy(to + kScaleAt + 2 * lane, &block.scale, 2);
      if (Format::kMinima) std::memcpy(to + kMinimumAt + 2 * lane, &block.minimum, 2);
      infinite += !IsFinite(block.scale) || (Format::kMinima && !IsFinite(block.minimum));
    }
    for (int g = 0; g < kGroups; ++g) Codes::Write(codes[g], to + g * Codes::kBytes);
    return infinite;
  }

  // Unpacks the values of one lane.
  static void Unpack(const uint8_t* from, int lane, float* to) {
    float scales[kLanes], minima[kLanes] = {};
    Write(scales, ReadHalves(from + kScaleAt));
    if constexpr (Format::kMinima) Write(minima, ReadHalves(from + kMinimumAt));
    for (int i = 0; i < Format::kInputs; ++i) {
      const int at = i / (kGroup / Format::kHalves) * kLanes + lane;
      float scale = scales[lane], minimum = minima[lane];
      if constexpr (Format::kFactors) scale *= static_cast<int8_t>(from[kFactorsAt + at]);
      if constexpr (Format::kFactors && Format::kMinima) minimum *= static_cast<int8_t>(from[kMinimaAt + at]);
      const int code = Table<Format>::Look(Codes::One(from + i / kGroup * Codes::kBytes, i % kGroup / 4, lane * 4 + i % 4));
      to[i] = scale * static_cast<float>(code - Format::kOffset);
      if constexpr (Format::kMinima) to[i] += minimum;
    }
  }
};

}  // namespace jaxspec

#endif  // JAXSPEC_TILES_H_
