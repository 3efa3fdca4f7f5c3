// Attention of a few fresh tokens over a cache that is read where it lies, and over each other.
//
// XLA copies a block of the cache before it multiplies it, and runs some twenty small operations for each layer; this is
// one. Slots are visited in blocks of the same size from the first on, whatever is fed with a token.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <vector>

#include "lanes.h"

namespace ffi = xla::ffi;
using namespace jaxspec;

namespace {

constexpr int kBlock = 32;      // slots whose keys and values stay in a core's cache while all queries look at them
constexpr int64_t kPart = 128;  // slots that a thread takes at once, of few queries
constexpr int64_t kMany = 48;   // queries that it does, where there are more
constexpr int kRows = 8;        // keys whose products with queries stay in registers; divides kLanes
constexpr int kHeld = 4;        // vectors of a query's sum of values that do
#if defined(__AVX512F__)
constexpr int kTogether = 3;  // queries that share what is read, as far as the registers go
#else
constexpr int kTogether = 1;
#endif
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

// Products of each query with `kLanes` keys: out[query][key].
template <int kQueries>
inline void Dots(const float* const* queries, const float* const* keys, int64_t width, Lanes* out) {
  Lanes folded[kQueries][kLanes / kRows];
#pragma GCC unroll 2
  for (int group = 0; group < kLanes / kRows; ++group) {
    Lanes sums[kQueries][kRows] = {};
    for (int64_t i = 0; i + kLanes <= width; i += kLanes) {
      Lanes some[kQueries];
#pragma GCC unroll 4
      for (int query = 0; query < kQueries; ++query) some[query] = Kept(Read(queries[query] + i));
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        const Lanes key = Kept(Read(keys[group * kRows + row] + i));
#pragma GCC unroll 4
        for (int query = 0; query < kQueries; ++query) sums[query][row] += some[query] * key;
      }
    }
#pragma GCC unroll 4
    for (int query = 0; query < kQueries; ++query) folded[query][group] = FoldAll<kRows>(sums[query]);
  }
#pragma GCC unroll 4
  for (int query = 0; query < kQueries; ++query) out[query] = FoldAll<kLanes / kRows, kLanes / kRows>(folded[query]);
  for (int64_t i = width / kLanes * kLanes; i < width; ++i) {
    for (int query = 0; query < kQueries; ++query) {
      for (int row = 0; row < kLanes; ++row) out[query][row] += queries[query][i] * keys[row][i];
    }
  }
}

// to[query][i] = to[query][i] * shrink[query] + sum over j of weights[query][j] * values[j][i], for kVectors of i
template <int kQueries, int kVectors>
inline void AddSome(float* const* to, int64_t at, const float* shrink, const float (*weights)[kBlock],
                    const float* values, int64_t stride, int count) {
  Lanes sums[kQueries][kVectors];
#pragma GCC unroll 4
  for (int query = 0; query < kQueries; ++query) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[query][v] = Read(to[query] + at + v * kLanes) * shrink[query];
  }
  for (int j = 0; j < count; ++j) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const Lanes value = Kept(Read(values + j * stride + at + v * kLanes));
#pragma GCC unroll 4
      for (int query = 0; query < kQueries; ++query) sums[query][v] += value * weights[query][j];
    }
  }
#pragma GCC unroll 4
  for (int query = 0; query < kQueries; ++query) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) Write(to[query] + at + v * kLanes, sums[query][v]);
  }
}

template <int kQueries>
inline void Add(float* const* to, const float* shrink, const float (*weights)[kBlock], const float* values,
                int64_t stride, int count, int64_t width) {
  int64_t i = 0;
  for (; i + kHeld * kLanes <= width; i += kHeld * kLanes) {
    AddSome<kQueries, kHeld>(to, i, shrink, weights, values, stride, count);
  }
  for (; i + kLanes <= width; i += kLanes) AddSome<kQueries, 1>(to, i, shrink, weights, values, stride, count);
  for (; i < width; ++i) {
    for (int query = 0; query < kQueries; ++query) {
      float total = to[query][i] * shrink[query];
      for (int j = 0; j < count; ++j) total += values[j * stride + i] * weights[query][j];
      to[query][i] = total;
    }
  }
}

// Keys and values of some tokens that stand `stride` numbers apart.
struct Tokens {
  const float* keys;
  const float* values;
  int64_t stride;
  const int32_t* positions;  // null: they stand at `first` and after it
  int64_t first;
  const bool* mask;  // [time][mask_stride]; null: all are seen
  int64_t mask_stride;
  int64_t count;
};

struct Query {
  const float* values;
  int64_t time;
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

// Turns scores into weights relative to the new maximum; returns what the sums before must shrink by.
inline float Weigh(const Query& query, const Tokens& tokens, float* scores, State& state) {
  const int count = static_cast<int>(tokens.count);
  for (int j = count; j < kBlock; ++j) scores[j] = -INFINITY;
  for (int j = 0; j < count && (tokens.mask || query.window); ++j) {
    const int64_t position = tokens.positions ? tokens.positions[j] : tokens.first + j;
    const bool far = query.window && position <= query.position - query.window;
    if (far || (tokens.mask && !tokens.mask[query.time * tokens.mask_stride + j])) scores[j] = -INFINITY;
  }
  Lanes highest = Lanes{} - INFINITY;
  for (int j = 0; j < kBlock; j += kLanes) {
    const Lanes some = Read(scores + j) * query.scale;
    Write(scores + j, some);
    highest = some > highest ? some : highest;
  }
  const float maximum = std::max(state.maximum, Largest(highest));
  Lanes total = {};
  for (int j = 0; j < kBlock; j += kLanes) {
    const Lanes weights = Exp(Read(scores + j) - maximum);
    Write(scores + j, weights);
    total += weights;
  }
  const float shrink = state.maximum == maximum ? 1.0f : std::exp(state.maximum - maximum);
  state.weight = state.weight * shrink + Sum(total);
  state.maximum = maximum;
  return shrink;
}

template <int kQueries>
inline void Visit(const Query* queries, const Tokens& tokens, int64_t width, State* states) {
  float scores[kQueries][kBlock] __attribute__((aligned(64)));
  const int count = static_cast<int>(tokens.count);
  const float* asked[kQueries];
  float* sums[kQueries];
  float shrink[kQueries];
  for (int query = 0; query < kQueries; ++query) {
    asked[query] = queries[query].values;
    sums[query] = states[query].sums;
  }
  for (int first = 0; first < count; first += kLanes) {
    const float* keys[kLanes];
    for (int row = 0; row < kLanes; ++row) keys[row] = tokens.keys + std::min(first + row, count - 1) * tokens.stride;
    Lanes found[kQueries];
    Dots<kQueries>(asked, keys, width, found);
    for (int query = 0; query < kQueries; ++query) Write(scores[query] + first, found[query]);
  }
  for (int query = 0; query < kQueries; ++query) {
    shrink[query] = Weigh(queries[query], tokens, scores[query], states[query]);
  }
  Add<kQueries>(sums, shrink, scores, tokens.values, tokens.stride, count, width);
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

// Some queries of one head of one row, in the order of time and group, and how far each has come.
struct Asked {
  int64_t head, first;
  std::vector<State> states;
};

// Calls `visit(number, together)` for all queries, some at once.
template <typename Visitor>
inline void ByQueries(int64_t queries, const Visitor& visit) {
  int64_t number = 0;
  for (; number + kTogether <= queries; number += kTogether) visit(number, std::integral_constant<int, kTogether>());
  for (; number < queries; ++number) visit(number, std::integral_constant<int, 1>());
}

Query QueryOf(const Sizes& sizes, const Inputs& in, int64_t head, int64_t number) {
  const int64_t row = head / sizes.heads, time = number / sizes.group, member = number % sizes.group;
  const int64_t place = ((row * sizes.time + time) * sizes.heads + head % sizes.heads) * sizes.group + member;
  const int64_t position = in.positions[row * sizes.fresh + sizes.fresh - sizes.time + time];
  return {in.queries + place * sizes.width, time, position, sizes.window, sizes.scale};
}

// Asks for the `share`th of `shares` pieces of the next block, so that it is there when its turn comes.
inline void Prefetch(const float* keys, const float* values, int64_t count, int64_t share, int64_t shares) {
  constexpr int64_t line = 64 / sizeof(float);
  const int64_t lines = (count + line - 1) / line;
  for (int64_t i = lines * share / shares; i < lines * (share + 1) / shares; ++i) {
    __builtin_prefetch(keys + i * line, 0, 2);
    __builtin_prefetch(values + i * line, 0, 2);
  }
}

// Shows the queries one block of tokens, and asks for the next one.
void Show(const Sizes& sizes, const Inputs& in, Asked& asked, const Tokens& tokens, int64_t next) {
  const int64_t queries = asked.states.size(), beyond = tokens.count * tokens.stride;
  ByQueries(queries, [&](int64_t number, auto together) {
    constexpr int kQueries = decltype(together)::value;
    Prefetch(tokens.keys + beyond, tokens.values + beyond, next * sizes.width, number, queries);
    Query some[kQueries];
    for (int query = 0; query < kQueries; ++query) {
      some[query] = QueryOf(sizes, in, asked.head, asked.first + number + query);
    }
    Visit<kQueries>(some, tokens, sizes.width, &asked.states[number]);
  });
}

// Slots from `slot` to `last`, or to the end of the row's text.
void ShowCache(const Sizes& sizes, const Inputs& in, Asked& asked, int64_t slot, int64_t last) {
  const int64_t row = asked.head / sizes.heads;
  const int64_t lane = (sizes.layer * sizes.batch * sizes.heads + asked.head) * sizes.capacity;
  last = std::min({last, sizes.capacity, static_cast<int64_t>(in.lengths[row])});
  for (; slot < last; slot += kBlock) {
    const int64_t at = (lane + slot) * sizes.width, count = std::min<int64_t>(kBlock, last - slot);
    const int32_t* positions = in.cache_positions ? in.cache_positions + row * sizes.capacity + slot : nullptr;
    const Tokens tokens = {in.keys + at, in.values + at, sizes.width, positions, slot, nullptr, 0, count};
    Show(sizes, in, asked, tokens, std::min<int64_t>(kBlock, last - slot - count));
  }
}

// The tokens that were fed, and the division by all weights.
void ShowFresh(const Sizes& sizes, const Inputs& in, Asked& asked) {
  const int64_t row = asked.head / sizes.heads, stride = sizes.heads * sizes.width;
  const int64_t at = (row * sizes.fresh * sizes.heads + asked.head % sizes.heads) * sizes.width;
  for (int64_t first = 0; first < sizes.fresh; first += kBlock) {
    const int64_t place = at + first * stride;
    const bool* mask = in.mask + row * sizes.time * sizes.fresh + first;
    const int32_t* positions = in.positions + row * sizes.fresh + first;
    const int64_t count = std::min<int64_t>(kBlock, sizes.fresh - first);
    Show(sizes, in, asked,
         {in.fresh_keys + place, in.fresh_values + place, stride, positions, 0, mask, sizes.fresh, count}, 0);
  }
  for (const State& state : asked.states) {
    for (int64_t i = 0; i < sizes.width; ++i) state.sums[i] /= state.weight;
  }
}

Asked Begin(const Sizes& sizes, int64_t head, int64_t first, int64_t last, const std::function<float*(int64_t)>& sums) {
  Asked asked = {head, first, {}};
  for (int64_t number = first; number < last; ++number) {
    float* to = sums(number);
    std::fill(to, to + sizes.width, 0.0f);
    asked.states.push_back({to, 0.0f, kLowest});
  }
  return asked;
}

// Few queries: threads share the slots.
void Part(const Sizes& sizes, const Inputs& in, const Parts& parts, int64_t head, int64_t part) {
  const int64_t queries = sizes.Queries();
  auto place = [&](int64_t number) { return parts.Of(head, part, number, queries); };
  Asked asked = Begin(sizes, head, 0, queries, place);
  ShowCache(sizes, in, asked, part * kPart, (part + 1) * kPart);
  for (const State& state : asked.states) {
    state.sums[sizes.width] = state.weight;
    state.sums[sizes.width + 1] = state.maximum;
  }
}

// Puts the parts of one query together, in their order.
void Join(const Sizes& sizes, const Parts& parts, int64_t head, int64_t number, State& state) {
  for (int64_t part = 0; part < parts.count; ++part) {
    const float* from = parts.Of(head, part, number, sizes.Queries());
    const float maximum = std::max(state.maximum, from[sizes.width + 1]);
    const float shrink = std::exp(state.maximum - maximum), share = std::exp(from[sizes.width + 1] - maximum);
    for (int64_t i = 0; i < sizes.width; ++i) state.sums[i] = state.sums[i] * shrink + from[i] * share;
    state.weight = state.weight * shrink + from[sizes.width] * share;
    state.maximum = maximum;
  }
}

// Queries from `first` to `last`, whose parts are joined; without parts they look at the whole cache here.
void Finish(const Sizes& sizes, const Inputs& in, const Parts& parts, float* out, int64_t head, int64_t first,
            int64_t last) {
  auto place = [&](int64_t number) { return out + (QueryOf(sizes, in, head, number).values - in.queries); };
  Asked asked = Begin(sizes, head, first, last, place);
  if (parts.count == 0) ShowCache(sizes, in, asked, 0, sizes.capacity);
  for (int64_t number = first; number < last; ++number) Join(sizes, parts, head, number, asked.states[number - first]);
  ShowFresh(sizes, in, asked);
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
  // Many queries are shared among threads themselves.
  const bool many = sizes.Queries() > kMany;
  Parts parts = {nullptr, many ? 0 : (std::min(longest, sizes.capacity) + kPart - 1) / kPart, sizes.width + 2};
  parts.memory.reset(new float[heads * parts.count * sizes.Queries() * parts.stride]);
  float* to = out->typed_data();
  Share(pool, heads * parts.count, [=](int64_t one) { Part(sizes, in, parts, one / parts.count, one % parts.count); });
  const int64_t groups = (sizes.Queries() + kMany - 1) / kMany;
  Share(pool, heads * groups, [=](int64_t one) {
    const int64_t first = one % groups * kMany;
    Finish(sizes, in, parts, to, one / groups, first, std::min(sizes.Queries(), first + kMany));
  });
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
