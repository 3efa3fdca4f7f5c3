// Products of quantized activations with consecutive tiles, each unpacked once for up to kMostTileRows rows.
//
// A row's sums have equal terms in one order, regardless of the number of rows that share a tile.

#ifndef JAXSPEC_STORED_PRODUCT_H_
#define JAXSPEC_STORED_PRODUCT_H_

#include <cstdint>

#include "activations.h"
#include "tiles.h"

namespace jaxspec {

constexpr int kMostTileRows = 8;      // rows whose sums stay in registers
constexpr int kAhead = 4096;          // bytes to prefetch ahead, into the second cache

// The scales and minima of a group, or of each of its halves.
template <typename Format>
struct Scales {
  Lanes scales[Format::kHalves], minima[Format::kHalves];

  inline __attribute__((always_inline)) void Read(const uint8_t* tile, int group, Lanes scale, Lanes minimum) {
#pragma GCC unroll 2
    for (int half = 0; half < Format::kHalves; ++half) {
      const int at = (group * Format::kHalves + half) * kLanes;
      scales[half] = scale;
      if constexpr (Format::kFactors) scales[half] = scale * ReadBytes(tile + Tile<Format>::kFactorsAt + at);
      if constexpr (Format::kMinima) minima[half] = minimum;
      if constexpr (Format::kMinima && Format::kFactors) {
        minima[half] = minimum * ReadBytes(tile + Tile<Format>::kMinimaAt + at);
      }
    }
  }
};

// Adds the products of a group's codes with that group of each row, at a stride of `groups`. Rows take turns at each
// vector, since a processor cannot look past a few rows' chains of products.
template <typename Format, int kRows>
inline __attribute__((always_inline)) void AddGroup(Lanes* sums, const Codes* codes, const Scales<Format>& weights,
                                                    const Group* x, int64_t groups) {
  constexpr int kEach = kVectors / Format::kHalves;
#pragma GCC unroll 2
  for (int half = 0; half < Format::kHalves; ++half) {
    Integers found[kRows] = {};
#pragma GCC unroll 8
    for (int v = half * kEach; v < (half + 1) * kEach; ++v) {
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        found[row] = AddProducts(found[row], codes[v], x[row * groups].values + 4 * v);
      }
    }
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      const Group& one = x[row * groups];
#if JAXSPEC_BYTE_PRODUCTS
      if (__builtin_expect(one.fine, 0)) {
        Integers low = {};
#pragma GCC unroll 8
        for (int v = half * kEach; v < (half + 1) * kEach; ++v) low = AddProducts(low, codes[v], one.low + 4 * v);
        found[row] = found[row] * 256 + low;
      }
#endif
      if (Format::kOffset) found[row] -= Format::kOffset * (Format::kHalves == 1 ? one.all : one.whole[half]);
      sums[row] = MulAdd(__builtin_convertvector(found[row], Lanes), weights.scales[half] * one.scale, sums[row]);
      if constexpr (Format::kMinima) {
        const float sum = Format::kHalves == 1 ? one.sum : one.sums[half];
        sums[row] = MulAdd(weights.minima[half], Broadcast(sum), sums[row]);
      }
    }
  }
}

// Computes kLanes outputs of kRows rows, at a stride of `groups`; results have a stride of `out`.
template <typename Format, int kRows>
void TileRows(const uint8_t* tile, const Group* x, int64_t groups, float* y, int64_t out, int64_t outputs) {
  Lanes sums[kRows] = {};
  for (int64_t g = 0; g < groups; g += Tile<Format>::kGroups, tile += Tile<Format>::kBytes) {
    const Lanes scale = ReadHalves(tile + Tile<Format>::kScaleAt);
    Lanes minimum = {};
    if constexpr (Format::kMinima) minimum = ReadHalves(tile + Tile<Format>::kMinimumAt);
    for (int group = 0; group < Tile<Format>::kGroups; ++group) {
      for (int byte = 0; byte < Tile<Format>::kBytes / Tile<Format>::kGroups; byte += 64) {
        __builtin_prefetch(tile + group * (Tile<Format>::kBytes / Tile<Format>::kGroups) + byte + kAhead, 0, 2);
      }
      Codes codes[kVectors];
      Planes<Format::kBits>::Read(tile + group * Planes<Format::kBits>::kBytes, codes);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) codes[v] = Table<Format>::Look(codes[v]);
      Scales<Format> weights;
      weights.Read(tile, group, scale, minimum);
      AddGroup<Format, kRows>(sums, codes, weights, x + g + group, groups);
    }
  }
  for (int row = 0; row < kRows; ++row) {
    float found[kLanes];
    Write(found, sums[row]);
    for (int64_t o = 0; o < outputs; ++o) y[row * out + o] = found[o];
  }
}

// Computes kLanes outputs of any number of rows.
template <typename Format>
void TileAnyRows(const uint8_t* tile, const Group* x, int64_t rows, int64_t groups, float* y, int64_t out,
                 int64_t outputs) {
  for (int64_t row = 0; row < rows; row += kMostTileRows, x += kMostTileRows * groups, y += kMostTileRows * out) {
    switch (rows - row) {
      case 1: TileRows<Format, 1>(tile, x, groups, y, out, outputs); break;
      case 2: TileRows<Format, 2>(tile, x, groups, y, out, outputs); break;
      case 3: TileRows<Format, 3>(tile, x, groups, y, out, outputs); break;
      case 4: TileRows<Format, 4>(tile, x, groups, y, out, outputs); break;
      case 5: TileRows<Format, 5>(tile, x, groups, y, out, outputs); break;
      case 6: TileRows<Format, 6>(tile, x, groups, y, out, outputs); break;
      case 7: TileRows<Format, 7>(tile, x, groups, y, out, outputs); break;
      default: TileRows<Format, 8>(tile, x, groups, y, out, outputs); break;
    }
  }
}

}  // namespace jaxspec

#endif  // JAXSPEC_STORED_PRODUCT_H_
