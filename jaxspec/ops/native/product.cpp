// y[r, o] = sum over i of x[r, i] * w[o, i]: every weight is read from memory once, in place.
//
// XLA's forms of this product are bound by arithmetic from a few rows on (their inner loops use a part of the vector
// registers); here a tile of sums stays in registers, so that five rows take hardly longer than one.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "lanes.h"
#include "live_rows.h"

namespace ffi = xla::ffi;
using namespace jaxspec;

namespace {

#if defined(__AVX512F__)
constexpr int kSums = 24;  // of 32 registers; the others hold weights and activations
#else
constexpr int kSums = 12;  // of 16
#endif
constexpr int kMostRows = 8;              // rows of one tile
constexpr int kMostOutputs = 4;           // more outputs would mean more streams from memory
constexpr int kManyRows = 4;              // rows of a tile whose float32 weights stay in the nearest cache
constexpr int64_t kBand = 128;            // rows that stay in the next cache
constexpr int64_t kChunkBytes = 1 << 16;  // bytes of weights that a thread takes at once
constexpr int64_t kChunkOutputs = 24;     // a multiple of all tiles' outputs

inline float One(const float* from) { return *from; }

inline float One(const uint16_t* from) {
  uint32_t wide = static_cast<uint32_t>(*from) << 16;
  float value;
  __builtin_memcpy(&value, &wide, sizeof value);
  return value;
}

// The sums over the lanes of each of `kCount` vectors.
template <int kCount>
inline __attribute__((always_inline)) void SumAll(const Lanes* x, float* to) {
  if constexpr (kCount >= kLanes) {
    Write(to, SumEach<kLanes>(x));
    SumAll<kCount - kLanes>(x + kLanes, to + kLanes);
  } else if constexpr (kCount > 0) {
    constexpr int kPower = kCount > 8 ? 16 : kCount > 4 ? 8 : kCount > 2 ? 4 : kCount;
    Lanes padded[kPower] = {};
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i) padded[i] = x[i];
    const Lanes found = SumEach<kPower>(padded);
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i) to[i] = found[i];
  }
}

template <int kRows, int kOutputs, typename Weight>
void Tile(const float* x, const Weight* w, float* y, int64_t in, int64_t out) {
  Lanes sums[kOutputs][kRows] = {};
  const int64_t whole = in / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    Lanes weights[kOutputs];
#pragma GCC unroll 8
    for (int o = 0; o < kOutputs; ++o) {
      weights[o] = Kept(Read(w + o * in + i));
      // Of the next tile: too far ahead for the processor to predict.
      __builtin_prefetch(w + (kOutputs + o) * in + i);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Lanes value = Kept(Read(x + r * in + i));
#pragma GCC unroll 8
      for (int o = 0; o < kOutputs; ++o) sums[o][r] += weights[o] * value;
    }
  }
  float totals[kOutputs * kRows];
  SumAll<kOutputs * kRows>(&sums[0][0], totals);
  for (int r = 0; r < kRows; ++r) {
    for (int o = 0; o < kOutputs; ++o) {
      float total = totals[o * kRows + r];
      // Explicit: the compiler would contract this or not, depending on the type of weights.
      for (int64_t i = whole; i < in; ++i) total = std::fma(One(w + o * in + i), x[r * in + i], total);
      y[r * out + o] = total;
    }
  }
}

// Computes outputs `first` to `last` of up to kMostRows rows.
template <int kRows, typename Weight>
void Rows(const float* x, const Weight* w, float* y, int64_t in, int64_t out, int64_t first, int64_t last) {
  constexpr int kOutputs = std::max(1, std::min(kMostOutputs, kSums / kRows));
  int64_t o = first;
  for (; o + kOutputs <= last; o += kOutputs) Tile<kRows, kOutputs>(x, w + o * in, y + o, in, out);
  for (; o < last; ++o) Tile<kRows, 1>(x, w + o * in, y + o, in, out);
}

template <typename Weight>
void FewRows(const float* x, const Weight* w, float* y, int64_t rows, int64_t in, int64_t out, int64_t first,
             int64_t last) {
  switch (rows) {
    case 1: return Rows<1>(x, w, y, in, out, first, last);
    case 2: return Rows<2>(x, w, y, in, out, first, last);
    case 3: return Rows<3>(x, w, y, in, out, first, last);
    case 4: return Rows<4>(x, w, y, in, out, first, last);
    case 5: return Rows<5>(x, w, y, in, out, first, last);
    case 6: return Rows<6>(x, w, y, in, out, first, last);
    case 7: return Rows<7>(x, w, y, in, out, first, last);
    default: return Rows<8>(x, w, y, in, out, first, last);
  }
}

// Computes a tile's outputs for all rows: tile after tile reads the same weights.
template <int kOutputs>
void Down(const float* x, const float* w, float* y, int64_t rows, int64_t in, int64_t out) {
  int64_t r = 0;
  for (; r + kManyRows <= rows; r += kManyRows) Tile<kManyRows, kOutputs>(x + r * in, w, y + r * out, in, out);
  for (; r < rows; ++r) Tile<1, kOutputs>(x + r * in, w, y + r * out, in, out);
}

// Computes groups of rows, between which a chunk's weights stay in the core's cache: widening bfloat16 again takes less
// time than keeping it wide.
template <typename Weight>
void InGroups(const float* x, const Weight* w, float* y, int64_t rows, int64_t in, int64_t out, int64_t first,
              int64_t last) {
  for (int64_t r = 0; r < rows; r += kMostRows) {
    FewRows(x + r * in, w, y + r * out, std::min<int64_t>(kMostRows, rows - r), in, out, first, last);
  }
}

void AnyRows(const float* x, const uint16_t* w, float* y, int64_t rows, int64_t in, int64_t out, int64_t first,
             int64_t last) {
  InGroups(x, w, y, rows, in, out, first, last);
}

void AnyRows(const float* x, const float* w, float* y, int64_t rows, int64_t in, int64_t out, int64_t first,
             int64_t last) {
  if (rows <= kMostRows) return InGroups(x, w, y, rows, in, out, first, last);
  constexpr int kOutputs = kSums / kManyRows;
  for (int64_t r = 0; r < rows; r += kBand) {
    const int64_t some = std::min(kBand, rows - r);
    const float* from = x + r * in;
    float* to = y + r * out;
    int64_t o = first;
    for (; o + kOutputs <= last; o += kOutputs) Down<kOutputs>(from, w + o * in, to + o, some, in, out);
    for (; o < last; ++o) Down<1>(from, w + o * in, to + o, some, in, out);
  }
}

// Computes each run of rows with its expert's weights `[out, in]`; a product without experts is one run.
template <typename Weight>
void Product(ffi::ThreadPool& pool, const float* x, const Weight* w, float* y, const std::vector<Run>& runs, int64_t in,
             int64_t out) {
  const int64_t fit = kChunkBytes / std::max<int64_t>(1, in * sizeof(Weight)) / kChunkOutputs * kChunkOutputs;
  const int64_t outputs = std::max(kChunkOutputs, fit), chunks = (out + outputs - 1) / outputs;
  const Run* each = runs.data();
  Share(pool, static_cast<int64_t>(runs.size()) * chunks, [=](int64_t number) {
    const Run run = each[number / chunks];
    const int64_t first = number % chunks * outputs;
    AnyRows(x + run.first * in, w + run.expert * out * in, y + run.first * out, run.rows, in, out, first,
            std::min(out, first + outputs));
  });
}

// Computes runs with weights of either type.
ffi::Error AnyProduct(ffi::ThreadPool& pool, const float* x, const ffi::AnyBuffer& w, float* y,
                      const std::vector<Run>& runs, int64_t in, int64_t out) {
  switch (w.element_type()) {
    case ffi::F32:
      Product(pool, x, w.typed_data<float>(), y, runs, in, out);
      return ffi::Error::Success();
    case ffi::BF16:
      Product(pool, x, reinterpret_cast<const uint16_t*>(w.untyped_data()), y, runs, in, out);
      return ffi::Error::Success();
    default:
      return ffi::Error::InvalidArgument("weights must be float32 or bfloat16");
  }
}

ffi::Error Call(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::BufferR0<ffi::S32> layer,
                ffi::RemainingArgs weights, ffi::ResultBuffer<ffi::F32> y) {
  const auto w = OfLayer(layer, weights);
  if (!w) return w.error();
  const auto sizes = x.dimensions(), shape = w->dimensions();
  if (sizes.size() != 2 || shape.size() != 2 || sizes[1] != shape[1] || !HasShape(*y, {sizes[0], shape[0]})) {
    return ffi::Error::InvalidArgument("expected x [rows, in], w [out, in] and a result [rows, out]");
  }
  const int64_t rows = sizes[0];
  if (rows == 0) return ffi::Error::Success();
  return MultiplyLiveRows(x.typed_data(), y->typed_data(), rows, sizes[1], shape[0],
                          [&](const float* from, float* to, int64_t count) {
                            return AnyProduct(pool, from, *w, to, {{0, 0, count}}, sizes[1], shape[0]);
                          });
}

ffi::Error CallByExpert(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::Buffer<ffi::S32> experts,
                        ffi::BufferR0<ffi::S32> layer, ffi::RemainingArgs weights, ffi::ResultBuffer<ffi::F32> y) {
  const auto w = OfLayer(layer, weights);
  if (!w) return w.error();
  const auto sizes = x.dimensions(), shape = w->dimensions();
  if (sizes.size() != 2 || shape.size() != 3 || sizes[1] != shape[2] || experts.dimensions().size() != 1 ||
      !HasShape(experts, {sizes[0]}) || !HasShape(*y, {sizes[0], shape[1]})) {
    return ffi::Error::InvalidArgument("expected x [rows, in], experts [rows], w [e, out, in] and a result [rows, out]");
  }
  const auto runs = FindRuns(experts.typed_data(), x.typed_data(), y->typed_data(), sizes[0], sizes[1], shape[1], shape[0]);
  if (!runs) return runs.error();
  return AnyProduct(pool, x.typed_data(), *w, y->typed_data(), *runs, sizes[1], shape[1]);
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxspecProduct, Call,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::BufferR0<ffi::S32>>()
                                  .RemainingArgs()
                                  .Ret<ffi::Buffer<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxspecProductByExpert, CallByExpert,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::BufferR0<ffi::S32>>()
                                  .RemainingArgs()
                                  .Ret<ffi::Buffer<ffi::F32>>());
