// Attention of fresh tokens over a cache that is read where it lies, and over each other.
//
// XLA copies a block of the cache before it multiplies it, and runs some twenty small operations for each layer; this is
// one. Slots are visited in blocks of the same size from the first on, whatever is fed with a token.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <type_traits>
#include <vector>

#include "block.h"
#include "lanes.h"

namespace ffi = xla::ffi;
using namespace jaxspec;

namespace {

constexpr int64_t kPart = 128;  // slots that a thread takes at once, of few queries
constexpr int64_t kMany = 96;   // queries of which threads take some, each over all slots
constexpr int64_t kSome = 48;   // at most so many

template <ffi::DataType kType>
using BufferR5 = ffi::Buffer<kType, 5>;
template <ffi::DataType kType>
using ResultBufferR5 = ffi::ResultBuffer<kType, 5>;

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

// Asks for pieces `first` to `last` of `pieces` of the next block, so that it is there when its turn comes.
inline void Prefetch(const float* keys, const float* values, int64_t count, int64_t first, int64_t last,
                     int64_t pieces) {
  constexpr int64_t line = 64 / sizeof(float);
  const int64_t lines = (count + line - 1) / line;
  for (int64_t i = lines * first / pieces; i < lines * last / pieces; ++i) {
    __builtin_prefetch(keys + i * line, 0, 2);
    __builtin_prefetch(values + i * line, 0, 2);
  }
}

// Shows the queries one block of tokens, and asks for the next one.
void Show(const Sizes& sizes, const Inputs& in, Asked& asked, const Tokens& tokens, int64_t next) {
  const int64_t queries = asked.states.size(), beyond = tokens.count * tokens.stride;
  ByQueries(queries, [&](int64_t number, auto together) {
    constexpr int kQueries = decltype(together)::value;
    Prefetch(tokens.keys + beyond, tokens.values + beyond, next * sizes.width, number, number + kQueries, queries);
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

// Whether any of the queries sees any of `count` fed tokens.
bool Sees(const Sizes& sizes, const Asked& asked, const bool* mask, int64_t count) {
  const int64_t last = (asked.first + static_cast<int64_t>(asked.states.size()) - 1) / sizes.group;
  for (int64_t time = asked.first / sizes.group; time <= last; ++time) {
    if (std::memchr(mask + time * sizes.fresh, 1, count)) return true;
  }
  return false;
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
    if (!Sees(sizes, asked, mask, count)) continue;
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

ffi::Error Call(ffi::ThreadPool pool, BufferR5<ffi::F32> queries, ffi::BufferR4<ffi::F32> fresh_keys,
                ffi::BufferR4<ffi::F32> fresh_values, ffi::BufferR2<ffi::S32> positions,
                ffi::BufferR3<ffi::PRED> mask, BufferR5<ffi::F32> keys, BufferR5<ffi::F32> values,
                ffi::BufferR1<ffi::S32> lengths, ffi::BufferR2<ffi::S32> cache_positions,
                ResultBufferR5<ffi::F32> out, int64_t layer, int64_t window, float scale) {
  const auto shape = queries.dimensions(), cache = keys.dimensions();
  const int64_t fresh = fresh_keys.dimensions()[1];
  const Sizes sizes = {shape[0], shape[1], shape[2], shape[3], shape[4], cache[3], fresh, window, layer, scale};
  if (!HasShape(keys, {cache[0], sizes.batch, sizes.heads, sizes.capacity, sizes.width}) ||
      !HasShape(values, {cache[0], sizes.batch, sizes.heads, sizes.capacity, sizes.width}) ||
      !HasShape(lengths, {sizes.batch})) {
    return ffi::Error::InvalidArgument("expected queries [b, t, g, r, d], a cache [l, b, g, s, d] and lengths [b]");
  }
  if (!HasShape(fresh_keys, {sizes.batch, fresh, sizes.heads, sizes.width}) ||
      !HasShape(fresh_values, {sizes.batch, fresh, sizes.heads, sizes.width}) ||
      !HasShape(positions, {sizes.batch, fresh}) || !HasShape(mask, {sizes.batch, sizes.time, fresh}) ||
      fresh < sizes.time) {
    return ffi::Error::InvalidArgument(
        "expected fresh keys and values [b, u, g, d], positions [b, u] and a mask [b, t, u], with u >= t");
  }
  const bool numbered = cache_positions.element_count() > 0;
  if (numbered && !HasShape(cache_positions, {sizes.batch, sizes.capacity})) {
    return ffi::Error::InvalidArgument("expected the cache's positions [b, s], or none");
  }
  if (layer < 0 || layer >= cache[0]) return ffi::Error::InvalidArgument("expected a layer of the cache");
  if (window < 0) return ffi::Error::InvalidArgument("expected a window of at least 0");
  if (!HasShape(*out, {shape[0], shape[1], shape[2], shape[3], shape[4]})) {
    return ffi::Error::InvalidArgument("expected a result of the queries' shape");
  }
  if (out->element_count() == 0) return ffi::Error::Success();
  const Inputs in = {queries.typed_data(), fresh_keys.typed_data(), fresh_values.typed_data(), keys.typed_data(),
                     values.typed_data(), positions.typed_data(), lengths.typed_data(),
                     numbered ? cache_positions.typed_data() : nullptr, mask.typed_data()};
  const int64_t longest = std::max(0, *std::max_element(in.lengths, in.lengths + sizes.batch));
  const int64_t heads = sizes.batch * sizes.heads;
  // Many queries are shared among threads themselves.
  const bool many = sizes.Queries() > kMany;
  Parts parts = {nullptr, many ? 0 : (std::min(longest, sizes.capacity) + kPart - 1) / kPart, sizes.width + 2};
  parts.memory.reset(new float[heads * parts.count * sizes.Queries() * parts.stride]);
  float* to = out->typed_data();
  Share(pool, heads * parts.count, [=](int64_t one) { Part(sizes, in, parts, one / parts.count, one % parts.count); });
  const int64_t groups = (sizes.Queries() + kSome - 1) / kSome;
  Share(pool, heads * groups, [=](int64_t one) {
    const int64_t group = one % groups, queries = sizes.Queries();
    Finish(sizes, in, parts, to, one / groups, queries * group / groups, queries * (group + 1) / groups);
  });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxspecAttention, Call,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<BufferR5<ffi::F32>>()
                                  .Arg<ffi::BufferR4<ffi::F32>>()
                                  .Arg<ffi::BufferR4<ffi::F32>>()
                                  .Arg<ffi::BufferR2<ffi::S32>>()
                                  .Arg<ffi::BufferR3<ffi::PRED>>()
                                  .Arg<BufferR5<ffi::F32>>()
                                  .Arg<BufferR5<ffi::F32>>()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .Arg<ffi::BufferR2<ffi::S32>>()
                                  .Ret<BufferR5<ffi::F32>>()
                                  .Attr<int64_t>("layer")
                                  .Attr<int64_t>("window")
                                  .Attr<float>("scale"));
