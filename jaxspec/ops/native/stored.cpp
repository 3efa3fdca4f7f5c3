// y[r, o] = sum over i of x[r, i] * w[o, i], for weights in a file's blocks, repacked (tiles.h) with equal sizes and
// values. Also repacks them, and unpacks rows of them to floats.

#include <cstdint>
#include <string_view>
#include <vector>

#include "formats/all.h"
#include "live_rows.h"
#include "stored_product.h"

namespace ffi = xla::ffi;
using namespace jaxspec;

namespace {

constexpr int64_t kChunkBytes = 1 << 16;  // bytes of weights that a thread takes at once
constexpr int64_t kChunksEach = 6;          // at least, per thread: threads that finish early take more
constexpr int64_t kManyRows = 16;        // from this number of rows on, threads share the rounding of activations

// The functions of one format.
struct Kernels {
  int64_t inputs, block_bytes, tile_bytes;
  int (*pack)(const uint8_t* const* blocks, uint8_t* to);
  void (*unpack)(const uint8_t* tile, int lane, float* to);
  void (*product)(const uint8_t* tile, const Group* x, int64_t rows, int64_t groups, float* y, int64_t out,
                  int64_t outputs);
};

template <typename Format>
constexpr Kernels kKernelsOf = {Format::kInputs,      Format::kBytes,         Tile<Format>::kBytes,
                                Tile<Format>::Pack,   Tile<Format>::Unpack,   TileAnyRows<Format>};

const Kernels* Find(std::string_view name) {
#define JAXSPEC_FIND(Format) \
  if (name == Format::kName) return &kKernelsOf<Format>;
  JAXSPEC_FORMATS(JAXSPEC_FIND)
#undef JAXSPEC_FIND
  return nullptr;
}

int64_t CountTiles(int64_t out) { return (out + kLanes - 1) / kLanes; }

std::vector<Group> Quantize(ffi::ThreadPool& pool, const float* x, int64_t rows, int64_t groups) {
  std::vector<Group> found(rows * groups);
  Group* to = found.data();
  if (rows < kManyRows) {
    for (int64_t row = 0; row < rows; ++row) QuantizeRow(x + row * groups * kGroup, groups, to + row * groups);
  } else {
    Share(pool, rows, [=](int64_t row) { QuantizeRow(x + row * groups * kGroup, groups, to + row * groups); });
  }
  return found;
}

// Computes `out` outputs of each row.
ffi::Error Multiply(ffi::ThreadPool& pool, const Kernels& kernels, const float* x, const uint8_t* w, float* y,
                    int64_t rows, int64_t groups, int64_t out) {
  const std::vector<Group> quantized = Quantize(pool, x, rows, groups);
  const int64_t bytes = groups * kGroup / kernels.inputs * kernels.tile_bytes, tiles = CountTiles(out);
  const int64_t each = std::max<int64_t>(1, std::min(kChunkBytes / bytes, tiles / (kChunksEach * pool.num_threads())));
  const Group* from = quantized.data();
  const auto product = kernels.product;
  Share(pool, (tiles + each - 1) / each, [=](int64_t chunk) {
    for (int64_t tile = chunk * each; tile < std::min(tiles, (chunk + 1) * each); ++tile) {
      product(w + tile * bytes, from, rows, groups, y + tile * kLanes, out, std::min<int64_t>(kLanes, out - tile * kLanes));
    }
  });
  return ffi::Error::Success();
}

ffi::Error Product(ffi::ThreadPool pool, std::string_view name, ffi::Buffer<ffi::F32> x, ffi::BufferR0<ffi::S32> layer,
                   ffi::RemainingArgs weights, ffi::ResultBuffer<ffi::F32> y) {
  const auto sizes = x.dimensions(), shape = y->dimensions();
  const Kernels* kernels = Find(name);
  if (!kernels) return ffi::Error::InvalidArgument("unknown format of stored weights");
  const auto w = OfLayer(layer, weights);
  if (!w) return w.error();
  if (sizes.size() != 2 || shape.size() != 2 || sizes[0] != shape[0] || sizes[1] % kernels->inputs ||
      w->element_type() != ffi::U8 ||
      !HasShape(*w, {CountTiles(shape[1]) * (sizes[1] / kernels->inputs) * kernels->tile_bytes})) {
    return ffi::Error::InvalidArgument("expected x [rows, in], the tiles of w [out, in] and a result [rows, out]");
  }
  const int64_t rows = sizes[0], groups = sizes[1] / kGroup, out = shape[1];
  if (rows == 0 || out == 0 || groups == 0) {
    std::fill_n(y->typed_data(), rows * out, 0.0f);
    return ffi::Error::Success();
  }
  const uint8_t* tiles = w->typed_data<uint8_t>();
  return MultiplyLiveRows(x.typed_data(), y->typed_data(), rows, sizes[1], out,
                          [&](const float* from, float* to, int64_t count) {
                            return Multiply(pool, *kernels, from, tiles, to, count, groups, out);
                          });
}

// Computes outputs of one expert for its rows, given a tile whose first output is number `first` of the expert's, or
// before it: experts follow each other without a gap, so that one may begin within a tile.
void TileOfExpert(const Kernels& kernels, const uint8_t* tile, const Group* x, const Run& run, int64_t groups, float* y,
                  int64_t out, int64_t first) {
  const Group* from = x + run.first * groups;
  float* to = y + run.first * out;
  if (first >= 0 && first + kLanes <= out) {
    kernels.product(tile, from, run.rows, groups, to + first, out, kLanes);
    return;
  }
  std::vector<float> found(run.rows * kLanes);
  kernels.product(tile, from, run.rows, groups, found.data(), kLanes, kLanes);
  for (int64_t row = 0; row < run.rows; ++row) {
    for (int64_t lane = std::max<int64_t>(0, -first); lane < std::min<int64_t>(kLanes, out - first); ++lane) {
      to[row * out + first + lane] = found[row * kLanes + lane];
    }
  }
}

ffi::Error ProductByExpert(ffi::ThreadPool pool, std::string_view name, int64_t count, ffi::Buffer<ffi::F32> x,
                           ffi::Buffer<ffi::S32> experts, ffi::BufferR0<ffi::S32> layer, ffi::RemainingArgs weights,
                           ffi::ResultBuffer<ffi::F32> y) {
  const auto sizes = x.dimensions(), shape = y->dimensions();
  const Kernels* kernels = Find(name);
  if (!kernels) return ffi::Error::InvalidArgument("unknown format of stored weights");
  const auto w = OfLayer(layer, weights);
  if (!w) return w.error();
  if (count < 0 || count > INT32_MAX) return ffi::Error::InvalidArgument("no such number of experts");
  if (sizes.size() != 2 || shape.size() != 2 || sizes[0] != shape[0] || sizes[1] % kernels->inputs ||
      experts.dimensions().size() != 1 || !HasShape(experts, {sizes[0]}) || w->element_type() != ffi::U8 ||
      !HasShape(*w, {CountTiles(count * shape[1]) * (sizes[1] / kernels->inputs) * kernels->tile_bytes})) {
    return ffi::Error::InvalidArgument(
        "expected x [rows, in], experts [rows], the tiles of w [count, out, in] and a result [rows, out]");
  }
  const int64_t rows = sizes[0], groups = sizes[1] / kGroup, out = shape[1];
  const auto found = FindRuns(experts.typed_data(), x.typed_data(), y->typed_data(), rows, sizes[1], out, count);
  if (!found) return found.error();
  if (rows == 0 || out == 0 || groups == 0) {
    std::fill_n(y->typed_data(), rows * out, 0.0f);
    return ffi::Error::Success();
  }
  const std::vector<Group> quantized = Quantize(pool, x.typed_data(), rows, groups);
  // An expert that begins within a tile may have one tile more.
  const int64_t bytes = sizes[1] / kernels->inputs * kernels->tile_bytes, tiles = CountTiles(out) + (out % kLanes > 0);
  const int64_t runs = found->size(), threads = pool.num_threads();
  if (runs == 0) return ffi::Error::Success();
  const int64_t each = std::max<int64_t>(1, std::min(kChunkBytes / bytes, runs * tiles / (kChunksEach * threads)));
  const int64_t chunks = (tiles + each - 1) / each;
  const Group* from = quantized.data();
  const Run* of = found->data();
  const uint8_t* first = w->typed_data<uint8_t>();
  float* to = y->typed_data();
  Share(pool, runs * chunks, [=](int64_t number) {
    const Run run = of[number / chunks];
    const int64_t begin = run.expert * out / kLanes, end = CountTiles((run.expert + 1) * out);
    const int64_t start = begin + number % chunks * each;
    for (int64_t tile = start; tile < std::min(end, start + each); ++tile) {
      TileOfExpert(*kernels, first + tile * bytes, from, run, groups, to, out, tile * kLanes - run.expert * out);
    }
  });
  return ffi::Error::Success();
}

ffi::Error Rows(std::string_view name, int64_t outputs, ffi::Buffer<ffi::S32> rows, ffi::Buffer<ffi::U8> w,
                ffi::ResultBuffer<ffi::F32> y) {
  const auto shape = y->dimensions();
  const Kernels* kernels = Find(name);
  if (!kernels) return ffi::Error::InvalidArgument("unknown format of stored weights");
  // Rows are 32-bit, and larger sizes would overflow.
  if (outputs < 0 || outputs > INT32_MAX) return ffi::Error::InvalidArgument("no such number of outputs");
  const int64_t blocks = shape.size() == 2 ? shape[1] / kernels->inputs : 0;
  if (shape.size() != 2 || shape[1] % kernels->inputs || !HasShape(rows, {shape[0]}) ||
      !HasShape(w, {CountTiles(outputs) * blocks * kernels->tile_bytes})) {
    return ffi::Error::InvalidArgument("expected rows [n], the tiles of w [out, in] and a result [n, in]");
  }
  for (int64_t i = 0; i < shape[0]; ++i) {
    const int64_t row = rows.typed_data()[i];
    if (row < 0 || row >= outputs) return ffi::Error::InvalidArgument("a row is out of range");
    const uint8_t* tile = w.typed_data() + row / kLanes * blocks * kernels->tile_bytes;
    float* to = y->typed_data() + i * shape[1];
    for (int64_t b = 0; b < blocks; ++b) {
      kernels->unpack(tile + b * kernels->tile_bytes, static_cast<int>(row % kLanes), to + b * kernels->inputs);
    }
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxspecStoredProduct, Product,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Attr<std::string_view>("format")
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::BufferR0<ffi::S32>>()
                                  .RemainingArgs()
                                  .Ret<ffi::Buffer<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxspecStoredProductByExpert, ProductByExpert,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Attr<std::string_view>("format")
                                  .Attr<int64_t>("count")
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::BufferR0<ffi::S32>>()
                                  .RemainingArgs()
                                  .Ret<ffi::Buffer<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxspecStoredRows, Rows,
                              ffi::Ffi::Bind()
                                  .Attr<std::string_view>("format")
                                  .Attr<int64_t>("outputs")
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::U8>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());

extern "C" {

int64_t JaxspecLanes() { return kLanes; }

// The size of one tile of a format; -1 if unknown.
int64_t JaxspecTileBytes(const char* format) {
  const Kernels* kernels = Find(format);
  return kernels ? kernels->tile_bytes : -1;
}

// Repacks consecutive rows of a file into the tiles `first` to `last` of `out` outputs. Returns the number of blocks
// whose scale or minimum is not finite.
int64_t JaxspecPack(const char* format, const uint8_t* from, int64_t out, int64_t in, int64_t first, int64_t last,
                 uint8_t* to) {
  const Kernels* kernels = Find(format);
  const int64_t blocks = in / kernels->inputs, row_bytes = blocks * kernels->block_bytes;
  int64_t infinite = 0;
  for (int64_t tile = first; tile < last; ++tile) {
    for (int64_t b = 0; b < blocks; ++b) {
      const uint8_t* lanes[kLanes];
      for (int lane = 0; lane < kLanes; ++lane) {
        const int64_t row = tile * kLanes + lane;
        lanes[lane] = row < out ? from + row * row_bytes + b * kernels->block_bytes : nullptr;
      }
      infinite += kernels->pack(lanes, to + (tile * blocks + b) * kernels->tile_bytes);
    }
  }
  return infinite;
}

}  // extern "C"
