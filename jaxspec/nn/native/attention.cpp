// Attention of a few fresh tokens over a cache that is read where it lies, and over each other.
//
// XLA copies a block of the cache before it multiplies it, and runs some twenty small operations for each layer; this is
// one. Slots are visited in blocks of the same size from the first on, whatever is fed with a token.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>

#include "lanes.h"

namespace ffi = xla::ffi;
using namespace jaxspec;

namespace {

constexpr int kBlock = 32;      // slots whose keys and values stay in a core's cache while all queries look at them
constexpr int64_t kPart = 128;  // slots that a thread takes at once
constexpr int kRows = 8;        // sums of scores that stay in registers; divides kBlock
constexpr int kHeld = 4;        // vectors of one sum of values that do
constexpr float kLowest = -1e30f;

// e^x for x <= 0, to two units in the last place; NaN stays.
inline Lanes Exp(Lanes x) {
  const Lanes clamped = x > -87.0f ? x : Lanes{} - 87.0f;
  const Integers power = __builtin_convertvector(clamped * 1.44269504f - 0.5f, Integers);  // to the nearest: x <= 0
  const Lanes whole = __builtin_convertvector(power, Lanes);
  const Lanes rest = (clamped - whole * 0.693359375f) + whole * 2.12194440e-4f;
  Lanes sum = Lanes{} + 1.9875691500e-4f;
  sum = sum * rest + 1.3981999507e-3f;
  sum = sum * rest + 8.3334519073e-3f;
  sum = sum * rest + 4.1665795894e-2f;
  sum = sum * rest + 1.6666665459e-1f;
  sum = sum * rest + 5.0000001201e-1f;
  sum = sum * rest * rest + rest + 1.0f;
  Integers scale = (power + 127) << 23;
  sum *= reinterpret_cast<Lanes&>(scale);
  sum = x < -87.0f ? Lanes{} : sum;
  return x == x ? sum : x;
}

// `count` products of `x` with rows of `y`, several at once: each alone would wait for its own additions.
inline void Dots(const float* x, const float* y, int64_t stride, int count, int64_t width, float* out) {
  for (int first = 0; first < count; first += kRows) {
    const float* rows[kRows];
    Lanes sums[kRows] = {};
    for (int row = 0; row < kRows; ++row) rows[row] = y + std::min(first + row, count - 1) * stride;
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) {
      const Lanes some = Read(x + i);
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) sums[row] += some * Read(rows[row] + i);
    }
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      float total = Sum(sums[row]);
      for (int64_t rest = i; rest < width; ++rest) total += x[rest] * rows[row][rest];
      out[first + row] = total;
    }
  }
}

// to[i] = to[i] * shrink + sum over j of weights[j] * values[j][i]
template <int kVectors>
inline void AddSome(float* to, float shrink, const float* weights, const float* values, int64_t stride, int count) {
  Lanes sums[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) sums[v] = Read(to + v * kLanes) * shrink;
  Lanes odd[kVectors] = {};
  int j = 0;
  for (; j + 1 < count; j += 2) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sums[v] += Read(values + j * stride + v * kLanes) * weights[j];
      odd[v] += Read(values + (j + 1) * stride + v * kLanes) * weights[j + 1];
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    if (j < count) sums[v] += Read(values + j * stride + v * kLanes) * weights[j];
    Write(to + v * kLanes, sums[v] + odd[v]);
  }
}

inline void Add(float* to, float shrink, const float* weights, const float* values, int64_t stride, int count,
                int64_t width) {
  int64_t i = 0;
  for (; i + kHeld * kLanes <= width; i += kHeld * kLanes) {
    AddSome<kHeld>(to + i, shrink, weights, values + i, stride, count);
  }
  for (; i + kLanes <= width; i += kLanes) AddSome<1>(to + i, shrink, weights, values + i, stride, count);
  for (; i < width; ++i) {
    float total = to[i] * shrink;
    for (int j = 0; j < count; ++j) total += values[j * stride + i] * weights[j];
    to[i] = total;
  }
}

// Keys and values of some tokens that stand `stride` numbers apart.
struct Tokens {
  const float* keys;
  const float* values;
  int64_t stride;
  const int32_t* positions;  // null: they stand at `first` and after it
  int64_t first;
  const bool* mask;  // null: all are seen
  int64_t count;
};

struct Query {
  const float* values;
  int64_t position;
  int64_t window;  // how many positions back it sees, itself included; 0 sees all
  float scale;
};

// A softmax that goes on: `sums[width]` are relative to `maximum`.
struct State {
  float* sums;
  float weight;
  float maximum;
};

inline void Visit(const Query& query, const Tokens& tokens, int64_t width, State& state) {
  float scores[kBlock] __attribute__((aligned(64)));
  const int count = static_cast<int>(tokens.count);
  Dots(query.values, tokens.keys, tokens.stride, count, width, scores);
  for (int j = 0; j < kBlock; ++j) scores[j] = j < count ? scores[j] * query.scale : -INFINITY;
  for (int j = 0; j < count && (tokens.mask || query.window); ++j) {
    const int64_t position = tokens.positions ? tokens.positions[j] : tokens.first + j;
    const bool far = query.window && position <= query.position - query.window;
    if (far || (tokens.mask && !tokens.mask[j])) scores[j] = -INFINITY;
  }
  Lanes highest = Lanes{} - INFINITY;
  for (int j = 0; j < kBlock; j += kLanes) {
    const Lanes some = Read(scores + j);
    highest = some > highest ? some : highest;
  }
  float maximum = state.maximum;
  Four parts[kLanes / 4];
  __builtin_memcpy(parts, &highest, sizeof highest);
  for (const Four& part : parts) {
    for (int lane = 0; lane < 4; ++lane) maximum = std::max(maximum, part[lane]);
  }
  Lanes total = {};
  for (int j = 0; j < kBlock; j += kLanes) {
    const Lanes weights = Exp(Read(scores + j) - maximum);
    Write(scores + j, weights);
    total += weights;
  }
  const float shrink = std::exp(state.maximum - maximum);
  Add(state.sums, shrink, scores, tokens.values, tokens.stride, count, width);
  state.weight = state.weight * shrink + Sum(total);
  state.maximum = maximum;
}

struct Sizes {
  int64_t batch, time, heads, group, width, capacity, fresh, window, layer;
  float scale;

  int64_t Queries() const { return time * group; }
};

struct Inputs {
  const float *queries, *fresh_keys, *fresh_values, *keys, *values;
  const int32_t *positions, *lengths, *cache_positions;
  const bool* mask;
};

// What one part of one head's slots gives each query: sums, weight, maximum.
struct Parts {
  std::shared_ptr<float[]> memory;
  int64_t count, stride;

  float* Of(int64_t head, int64_t part, int64_t query, int64_t queries) const {
    return memory.get() + ((head * count + part) * queries + query) * stride;
  }
};

Query QueryOf(const Sizes& sizes, const Inputs& in, int64_t row, int64_t head, int64_t number) {
  const int64_t time = number / sizes.group, member = number % sizes.group;
  const int64_t place = ((row * sizes.time + time) * sizes.heads + head) * sizes.group + member;
  const int64_t position = in.positions[row * sizes.fresh + sizes.fresh - sizes.time + time];
  return {in.queries + place * sizes.width, position, sizes.window, sizes.scale};
}

void Part(const Sizes& sizes, const Inputs& in, const Parts& parts, int64_t head, int64_t part) {
  const int64_t row = head / sizes.heads, queries = sizes.Queries(), width = sizes.width;
  const int64_t last = std::min<int64_t>(std::min<int64_t>(in.lengths[row], sizes.capacity), (part + 1) * kPart);
  for (int64_t number = 0; number < queries; ++number) {
    float* to = parts.Of(head, part, number, queries);
    std::fill(to, to + width + 1, 0.0f);
    to[width + 1] = kLowest;
  }
  const int64_t lane = (sizes.layer * sizes.batch * sizes.heads + head) * sizes.capacity;
  for (int64_t slot = part * kPart; slot < last; slot += kBlock) {
    const int64_t at = (lane + slot) * width;
    const int32_t* positions = in.cache_positions ? in.cache_positions + row * sizes.capacity + slot : nullptr;
    const int64_t count = std::min<int64_t>(kBlock, last - slot);
    const Tokens tokens = {in.keys + at, in.values + at, width, positions, slot, nullptr, count};
    for (int64_t number = 0; number < queries; ++number) {
      float* to = parts.Of(head, part, number, queries);
      State state = {to, to[width], to[width + 1]};
      Visit(QueryOf(sizes, in, row, head % sizes.heads, number), tokens, width, state);
      to[width] = state.weight;
      to[width + 1] = state.maximum;
    }
  }
}

// Puts the parts of one head together, in their order, and the fresh tokens behind them.
void Finish(const Sizes& sizes, const Inputs& in, const Parts& parts, float* out, int64_t head) {
  const int64_t row = head / sizes.heads, queries = sizes.Queries(), width = sizes.width;
  const int64_t stride = sizes.heads * width, at = (row * sizes.fresh * sizes.heads + head % sizes.heads) * width;
  for (int64_t number = 0; number < queries; ++number) {
    const Query query = QueryOf(sizes, in, row, head % sizes.heads, number);
    float* sums = out + (query.values - in.queries);
    std::fill(sums, sums + width, 0.0f);
    State state = {sums, 0.0f, kLowest};
    for (int64_t part = 0; part < parts.count; ++part) {
      const float* from = parts.Of(head, part, number, queries);
      const float maximum = std::max(state.maximum, from[width + 1]);
      const float shrink = std::exp(state.maximum - maximum), share = std::exp(from[width + 1] - maximum);
      Add(sums, shrink, &share, from, width, 1, width);
      state.weight = state.weight * shrink + from[width] * share;
      state.maximum = maximum;
    }
    const bool* mask = in.mask + (row * sizes.time + number / sizes.group) * sizes.fresh;
    for (int64_t first = 0; first < sizes.fresh; first += kBlock) {
      const Tokens tokens = {in.fresh_keys + at + first * stride, in.fresh_values + at + first * stride, stride,
                             in.positions + row * sizes.fresh + first, 0, mask + first,
                             std::min<int64_t>(kBlock, sizes.fresh - first)};
      Visit(query, tokens, width, state);
    }
    for (int64_t i = 0; i < width; ++i) sums[i] /= state.weight;
  }
}

ffi::Error Call(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> queries, ffi::Buffer<ffi::F32> fresh_keys,
                ffi::Buffer<ffi::F32> fresh_values, ffi::Buffer<ffi::S32> positions, ffi::Buffer<ffi::PRED> mask,
                ffi::Buffer<ffi::F32> keys, ffi::Buffer<ffi::F32> values, ffi::Buffer<ffi::S32> lengths,
                ffi::Buffer<ffi::S32> cache_positions, ffi::ResultBuffer<ffi::F32> out, int64_t layer, int64_t window,
                float scale) {
  const auto shape = queries.dimensions(), cache = keys.dimensions();
  const int64_t fresh = fresh_keys.dimensions()[1];
  if (shape.size() != 5 || cache.size() != 5 || cache[1] != shape[0] || cache[2] != shape[2] || cache[4] != shape[4]) {
    return ffi::Error::InvalidArgument("expected queries [b, t, g, r, d] and a cache [l, b, g, s, d]");
  }
  const Sizes sizes = {shape[0], shape[1], shape[2], shape[3], shape[4], cache[3], fresh, window, layer, scale};
  const bool numbered = cache_positions.element_count() > 0;
  const Inputs in = {queries.typed_data(), fresh_keys.typed_data(), fresh_values.typed_data(), keys.typed_data(),
                     values.typed_data(), positions.typed_data(), lengths.typed_data(),
                     numbered ? cache_positions.typed_data() : nullptr, mask.typed_data()};
  const int64_t longest = *std::max_element(in.lengths, in.lengths + sizes.batch);
  const int64_t heads = sizes.batch * sizes.heads;
  Parts parts = {nullptr, (std::min(longest, sizes.capacity) + kPart - 1) / kPart, sizes.width + 2};
  parts.memory.reset(new float[heads * parts.count * sizes.Queries() * parts.stride]);
  float* to = out->typed_data();
  Share(pool, heads * parts.count, [=](int64_t one) { Part(sizes, in, parts, one / parts.count, one % parts.count); });
  Share(pool, heads, [=](int64_t head) { Finish(sizes, in, parts, to, head); });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxspecAttention, Call,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::PRED>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<int64_t>("layer")
                                  .Attr<int64_t>("window")
                                  .Attr<float>("scale"));
