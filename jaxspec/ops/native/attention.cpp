// Attention of fresh tokens over a cache, read in place, and over each other.
//
// XLA copies a block of the cache before it multiplies it, and runs some twenty small operations for each layer; this
// is one. A query's visible tokens are summed in a fixed order, by blocks and parts of the slots that they have or
// would have: a token gets equal bits from tokens in the cache and from the same tokens fed with it. Fresh keys and
// values are float32, and the numbers of a float16 cache if that has them. A token at a position below 0 is padding: it
// attends to nothing and gets zeros; padding at the end of a row costs nothing.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "seen.h"

namespace ffi = xla::ffi;
using namespace jaxspec;

namespace {

constexpr int64_t kPart = 128;  // slots summed separately, then joined; for few queries, a thread takes one part
constexpr int64_t kMany = 96;   // above this number of queries, threads take some of them, each over all slots
constexpr int64_t kSome = 48;   // at most this number of them

static_assert(kPart % kBlock == 0, "a part has whole blocks");
static_assert(kTogether <= 3, "there is no form for so many queries");

template <ffi::DataType kType>
using BufferR5 = ffi::Buffer<kType, 5>;
template <ffi::DataType kType>
using ResultBufferR5 = ffi::ResultBuffer<kType, 5>;

// The sums, weight and maximum that each query gets from one part of a head's slots.
struct Parts {
  std::shared_ptr<float[]> memory;
  int64_t count, queries, stride;

  float* Of(int64_t head, int64_t part, int64_t query) const {
    return memory.get() + ((head * count + part) * queries + query) * stride;
  }
};

// Some queries of one head of one row, in the order of time and group, and their running state.
struct Asked {
  int64_t head, first;
  std::vector<State> states;
};

int32_t PositionOf(const Sizes& sizes, const Inputs& in, int64_t row, int64_t time) {
  return in.positions[row * sizes.fresh + sizes.fresh - sizes.time + time];
}

// The number of queries of a head up to the last that is not padding.
int64_t LiveQueries(const Sizes& sizes, const Inputs& in, int64_t head) {
  int64_t time = sizes.time;
  while (time > 0 && PositionOf(sizes, in, head / sizes.heads, time - 1) < 0) --time;
  return time * sizes.group;
}

Query QueryOf(const Sizes& sizes, const Inputs& in, int64_t head, int64_t number) {
  const int64_t row = head / sizes.heads, time = number / sizes.group, member = number % sizes.group;
  const int64_t place = ((row * sizes.time + time) * sizes.heads + head % sizes.heads) * sizes.group + member;
  return {in.queries + place * sizes.width, PositionOf(sizes, in, row, time), sizes.window, sizes.scale};
}

// Adds the same tokens to some of the queries, from `number` on.
template <int kQueries>
void ShowSome(const Sizes& sizes, const Inputs& in, Asked& asked, const Tokens& tokens, int64_t number) {
  Query some[kQueries];
  for (int query = 0; query < kQueries; ++query) {
    some[query] = QueryOf(sizes, in, asked.head, asked.first + number + query);
  }
  Visit<kQueries>(some, tokens, sizes.width, &asked.states[number]);
}

void Begin(State& state, int64_t width) {
  std::fill(state.sums, state.sums + width, 0.0f);
  state.weight = 0.0f;
  state.maximum = kLowest;
}

// Gives the query's sink, a score without a value, its weight.
void AddSink(const Sizes& sizes, const Inputs& in, int64_t head, int64_t number, State& state) {
  if (!in.sinks) return;
  state.weight = 1.0f;
  state.maximum = in.sinks[head % sizes.heads * sizes.group + number % sizes.group];
}

Asked Begin(const Sizes& sizes, int64_t head, int64_t first, int64_t last, const std::function<float*(int64_t)>& sums) {
  Asked asked = {head, first, {}};
  for (int64_t number = first; number < last; ++number) {
    asked.states.push_back({sums(number), 0.0f, kLowest});
    Begin(asked.states.back(), sizes.width);
  }
  return asked;
}

// For few queries: threads share the full parts of the cache.
void Part(const Sizes& sizes, const Inputs& in, const Parts& parts, int64_t head, int64_t part) {
  const int64_t queries = LiveQueries(sizes, in, head), length = sizes.Length(in, head), last = (part + 1) * kPart;
  if (last > length || queries == 0) return;
  auto place = [&](int64_t number) { return parts.Of(head, part, number); };
  Asked asked = Begin(sizes, head, 0, queries, place);
  for (int64_t slot = part * kPart; slot < last; slot += kBlock) {
    const Tokens tokens = Cached(sizes, in, head, slot, kBlock);
    const int64_t next = std::min<int64_t>(kBlock, last - slot - kBlock);
    int64_t number = 0;
    for (; number + kTogether <= queries; number += kTogether) {
      Prefetch(sizes, in, head, slot + kBlock, next, number, number + kTogether, queries);
      ShowSome<kTogether>(sizes, in, asked, tokens, number);
    }
    for (; number < queries; ++number) {
      Prefetch(sizes, in, head, slot + kBlock, next, number, number + 1, queries);
      ShowSome<1>(sizes, in, asked, tokens, number);
    }
  }
  for (const State& state : asked.states) {
    state.sums[sizes.width] = state.weight;
    state.sums[sizes.width + 1] = state.maximum;
  }
}

// Joins a part to the state before it.
void Join(const State& from, int64_t width, State& state) {
  if (from.weight == 0.0f) return;  // it saw nothing; NaN is joined
  const float maximum = std::max(state.maximum, from.maximum);
  const float shrink = std::exp(state.maximum - maximum), share = std::exp(from.maximum - maximum);
  for (int64_t i = 0; i < width; ++i) state.sums[i] = std::fma(from.sums[i], share, state.sums[i] * shrink);
  state.weight = std::fma(from.weight, share, state.weight * shrink);
  state.maximum = maximum;
}

// Adds the block at `slot` to the queries: tokens of the cache, then fresh ones.
void ShowBlock(const Sizes& sizes, const Inputs& in, Asked& asked, const std::vector<Seen>& seen, int64_t slot) {
  const int64_t length = sizes.Length(in, asked.head), queries = asked.states.size();
  const int64_t next = std::clamp<int64_t>(length - slot - kBlock, 0, kBlock);
  const Tokens cached = Cached(sizes, in, asked.head, slot, std::clamp<int64_t>(length - slot, 0, kBlock));
  const auto of = [&](int64_t number) -> const Seen& {
    return seen[(asked.first + number) / sizes.group - asked.first / sizes.group];
  };
  for (int64_t number = 0, together; number < queries; number += together) {
    const int64_t most = std::min<int64_t>(kTogether, queries - number);
    for (together = 1; together < most; ++together) {
      if (!Alike(of(number), of(number + together), slot + kBlock - length)) break;
    }
    const Tokens tokens = Both(sizes, in, asked.head, of(number), slot, cached);
    if (tokens.count == 0) continue;
    Prefetch(sizes, in, asked.head, slot + kBlock, next, number, number + together, queries);
    switch (together) {
      case 1: ShowSome<1>(sizes, in, asked, tokens, number); break;
      case 2: ShowSome<2>(sizes, in, asked, tokens, number); break;
      default: ShowSome<3>(sizes, in, asked, tokens, number); break;
    }
  }
}

// Finishes queries `first` to `last`: joins their full parts, or computes them here without parts; then the rest.
void Finish(const Sizes& sizes, const Inputs& in, const Parts& parts, float* out, int64_t head, int64_t first,
            int64_t last) {
  auto place = [&](int64_t number) { return out + (QueryOf(sizes, in, head, number).values - in.queries); };
  const auto zero = [&](int64_t number) { std::fill_n(place(number), sizes.width, 0.0f); };
  const int64_t live = LiveQueries(sizes, in, head);
  for (; last > std::max(first, live); --last) zero(last - 1);
  if (first == last) return;
  const int64_t length = sizes.Length(in, head), count = last - first;
  Asked total = Begin(sizes, head, first, last, place);
  for (int64_t i = 0; i < count; ++i) AddSink(sizes, in, head, first + i, total.states[i]);
  int64_t slot = 0;
  for (int64_t part = 0; part < parts.count && slot + kPart <= length; ++part, slot += kPart) {
    for (int64_t number = first; number < last; ++number) {
      float* sums = parts.Of(head, part, number);
      Join({sums, sums[sizes.width], sums[sizes.width + 1]}, sizes.width, total.states[number - first]);
    }
  }
  std::vector<Seen> seen;
  for (int64_t time = first / sizes.group; time <= (last - 1) / sizes.group; ++time) {
    seen.push_back(SeenAt(sizes, in, head, time));
  }
  int64_t end = 0;
  for (const Seen& one : seen) end = std::max(end, length + one.count);
  std::vector<float> memory(count * sizes.width);
  Asked asked = Begin(sizes, head, first, last, [&](int64_t number) { return &memory[(number - first) * sizes.width]; });
  for (; slot < end; slot += kBlock) {
    ShowBlock(sizes, in, asked, seen, slot);
    if ((slot + kBlock) % kPart != 0 && slot + kBlock < end) continue;
    for (int64_t i = 0; i < count; ++i) {
      Join(asked.states[i], sizes.width, total.states[i]);
      Begin(asked.states[i], sizes.width);
    }
  }
  for (int64_t number = first; number < last; ++number) {
    const State& state = total.states[number - first];
    for (int64_t i = 0; i < sizes.width; ++i) state.sums[i] /= state.weight;
    if (QueryOf(sizes, in, head, number).position < 0) zero(number);
  }
}

ffi::Error Call(ffi::ThreadPool pool, BufferR5<ffi::F32> queries, ffi::BufferR4<ffi::F32> fresh_keys,
                ffi::BufferR4<ffi::F32> fresh_values, ffi::BufferR2<ffi::S32> positions,
                ffi::BufferR3<ffi::PRED> mask, ffi::AnyBuffer keys, ffi::AnyBuffer values,
                ffi::BufferR1<ffi::S32> lengths, ffi::BufferR2<ffi::S32> cache_positions,
                ffi::BufferR0<ffi::S32> which, ffi::BufferR2<ffi::F32> sinks, ResultBufferR5<ffi::F32> out,
                int64_t window, float scale) {
  const auto shape = queries.dimensions(), cache = keys.dimensions();
  const bool half = keys.element_type() == ffi::F16;
  if (cache.size() != 5 || keys.element_type() != values.element_type() ||
      (!half && keys.element_type() != ffi::F32)) {
    return ffi::Error::InvalidArgument("expected keys and values [l, b, g, s, d], both float32 or both float16");
  }
  const int64_t fresh = fresh_keys.dimensions()[1], layer = *which.typed_data();
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
  const bool sunk = sinks.element_count() > 0;
  if (sunk && !HasShape(sinks, {sizes.heads, sizes.group})) {
    return ffi::Error::InvalidArgument("expected the heads' sinks [g, r], or none");
  }
  if (layer < 0 || layer >= cache[0]) return ffi::Error::InvalidArgument("expected a layer of the cache");
  if (window < 0) return ffi::Error::InvalidArgument("expected a window of at least 0");
  if (!HasShape(*out, {shape[0], shape[1], shape[2], shape[3], shape[4]})) {
    return ffi::Error::InvalidArgument("expected a result of the queries' shape");
  }
  if (out->element_count() == 0) return ffi::Error::Success();
  const auto stored = [half](const ffi::AnyBuffer& buffer) -> Stored {
    const void* data = buffer.untyped_data();
    return {half ? nullptr : static_cast<const float*>(data), half ? static_cast<const uint16_t*>(data) : nullptr};
  };
  const Inputs in = {queries.typed_data(), fresh_keys.typed_data(), fresh_values.typed_data(), stored(keys),
                     stored(values), positions.typed_data(), lengths.typed_data(),
                     numbered ? cache_positions.typed_data() : nullptr, mask.typed_data(),
                     sunk ? sinks.typed_data() : nullptr};
  const int64_t longest = std::max(0, *std::max_element(in.lengths, in.lengths + sizes.batch));
  const int64_t heads = sizes.batch * sizes.heads;
  int64_t live = 1;  // the most of a row
  for (int64_t head = 0; head < heads; head += sizes.heads) live = std::max(live, LiveQueries(sizes, in, head));
  // Threads share many queries by query.
  const bool many = live > kMany;
  Parts parts = {nullptr, many ? 0 : std::min(longest, sizes.capacity) / kPart, live, sizes.width + 2};
  parts.memory.reset(new float[heads * parts.count * live * parts.stride]);
  float* to = out->typed_data();
  Share(pool, heads * parts.count, [=](int64_t one) { Part(sizes, in, parts, one / parts.count, one % parts.count); });
  const int64_t groups = (live + kSome - 1) / kSome;
  Share(pool, heads * groups, [=](int64_t one) {
    const int64_t group = one % groups, last = group + 1 < groups ? live * (group + 1) / groups : sizes.Queries();
    Finish(sizes, in, parts, to, one / groups, live * group / groups, last);
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
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .Arg<ffi::BufferR2<ffi::S32>>()
                                  .Arg<ffi::BufferR0<ffi::S32>>()
                                  .Arg<ffi::BufferR2<ffi::F32>>()
                                  .Ret<BufferR5<ffi::F32>>()
                                  .Attr<int64_t>("window")
                                  .Attr<float>("scale"));
