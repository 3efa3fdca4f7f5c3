// y[r, o] = sum over i of x[r, i] * w[o, i], for few rows: every weight is read from memory once.
//
// XLA's own forms of this product are bound by arithmetic from a few rows on (its inner loops use a part of the vector
// registers); here a tile of sums stays in registers, so that five rows take hardly longer than one.

#include <algorithm>
#include <cstdint>

#include "lanes.h"

namespace ffi = xla::ffi;
using namespace jaxspec;

namespace {

#if defined(__AVX512F__)
constexpr int kSums = 24;  // of 32 registers; the others hold weights and activations
#else
constexpr int kSums = 12;  // of 16
#endif
constexpr int kMostRows = 8;    // of one tile
constexpr int kMostOutputs = 8;
constexpr int64_t kChunkBytes = 1 << 16;  // of weights that a thread takes at once

inline float One(const float* from) { return *from; }

inline float One(const uint16_t* from) {
  uint32_t wide = static_cast<uint32_t>(*from) << 16;
  float value;
  __builtin_memcpy(&value, &wide, sizeof value);
  return value;
}

template <int kRows, int kOutputs, typename Weight>
void Tile(const float* x, const Weight* w, float* y, int64_t in, int64_t out) {
  Lanes sums[kOutputs][kRows] = {};
  const int64_t whole = in / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    Lanes weights[kOutputs];
#pragma GCC unroll 8
    for (int o = 0; o < kOutputs; ++o) {
      weights[o] = Read(w + o * in + i);
      // The next tile's: too far ahead for the processor to guess.
      __builtin_prefetch(w + (kOutputs + o) * in + i);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Lanes value = Read(x + r * in + i);
#pragma GCC unroll 8
      for (int o = 0; o < kOutputs; ++o) sums[o][r] += weights[o] * value;
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int o = 0; o < kOutputs; ++o) {
      float total = Sum(sums[o][r]);
      for (int64_t i = whole; i < in; ++i) total += One(w + o * in + i) * x[r * in + i];
      y[r * out + o] = total;
    }
  }
}

// Outputs from `first` to `last` of up to kMostRows rows.
template <int kRows, typename Weight>
void Rows(const float* x, const Weight* w, float* y, int64_t in, int64_t out, int64_t first, int64_t last) {
  constexpr int kOutputs = std::max(1, std::min(kMostOutputs, kSums / kRows));
  int64_t o = first;
  for (; o + kOutputs <= last; o += kOutputs) Tile<kRows, kOutputs>(x, w + o * in, y + o, in, out);
  for (; o < last; ++o) Tile<kRows, 1>(x, w + o * in, y + o, in, out);
}

template <typename Weight>
void AnyRows(const float* x, const Weight* w, float* y, int64_t rows, int64_t in, int64_t out, int64_t first,
             int64_t last) {
  // The chunk's weights stay in the core's cache between groups of rows.
  for (int64_t r = 0; r < rows; r += kMostRows) {
    const float* some = x + r * in;
    float* to = y + r * out;
    switch (std::min<int64_t>(kMostRows, rows - r)) {
      case 1: Rows<1>(some, w, to, in, out, first, last); break;
      case 2: Rows<2>(some, w, to, in, out, first, last); break;
      case 3: Rows<3>(some, w, to, in, out, first, last); break;
      case 4: Rows<4>(some, w, to, in, out, first, last); break;
      case 5: Rows<5>(some, w, to, in, out, first, last); break;
      case 6: Rows<6>(some, w, to, in, out, first, last); break;
      case 7: Rows<7>(some, w, to, in, out, first, last); break;
      default: Rows<8>(some, w, to, in, out, first, last);
    }
  }
}

template <typename Weight>
void Product(ffi::ThreadPool& pool, const float* x, const Weight* w, float* y, int64_t rows, int64_t in, int64_t out) {
  const int64_t outputs = std::max<int64_t>(kMostOutputs, kChunkBytes / (in * sizeof(Weight)));
  Share(pool, (out + outputs - 1) / outputs, [=](int64_t chunk) {
    AnyRows(x, w, y, rows, in, out, chunk * outputs, std::min(out, (chunk + 1) * outputs));
  });
}

ffi::Error Call(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::AnyBuffer w, ffi::ResultBuffer<ffi::F32> y) {
  const auto sizes = x.dimensions(), shape = w.dimensions();
  if (sizes.size() != 2 || shape.size() != 2 || sizes[1] != shape[1]) {
    return ffi::Error::InvalidArgument("expected x [rows, in] and w [out, in]");
  }
  const int64_t rows = sizes[0], in = sizes[1], out = shape[0];
  switch (w.element_type()) {
    case ffi::F32:
      Product(pool, x.typed_data(), w.typed_data<float>(), y->typed_data(), rows, in, out);
      break;
    case ffi::BF16:
      Product(pool, x.typed_data(), reinterpret_cast<const uint16_t*>(w.untyped_data()), y->typed_data(), rows, in, out);
      break;
    default:
      return ffi::Error::InvalidArgument("weights must be float32 or bfloat16");
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxspecProduct, Call,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::Buffer<ffi::F32>>());
