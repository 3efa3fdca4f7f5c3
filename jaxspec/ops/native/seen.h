// Which tokens a query sees, in the order of the slots that they have in the cache, or would have behind it.

#ifndef JAXSPEC_SEEN_H_
#define JAXSPEC_SEEN_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "block.h"

namespace jaxspec {

// Keys and values are float32, or bfloat16 by its bits.
template <typename Entry>
struct Inputs {
  const float* queries;
  const Entry *fresh_keys, *fresh_values, *keys, *values;
  const int32_t *positions, *lengths, *cache_positions;
  const bool* mask;
};

struct Sizes {
  int64_t batch, time, heads, group, width, capacity, fresh, window, layer;
  float scale;

  int64_t Queries() const { return time * group; }

  // The slots of the cache that a head's row has filled.
  template <typename Entry>
  int64_t Length(const Inputs<Entry>& in, int64_t head) const {
    return std::clamp<int64_t>(in.lengths[head / heads], 0, capacity);
  }
};

// The fresh tokens that one of them sees: the first `count`, or those listed.
struct Seen {
  int64_t count;
  std::vector<int32_t> listed;

  int64_t Which(int64_t rank) const { return listed.empty() ? rank : listed[rank]; }
};

template <typename Entry>
Seen SeenAt(const Sizes& sizes, const Inputs<Entry>& in, int64_t head, int64_t time) {
  const bool* mask = in.mask + (head / sizes.heads * sizes.time + time) * sizes.fresh;
  const void* hidden = std::memchr(mask, 0, sizes.fresh);
  const int64_t first = hidden ? static_cast<const bool*>(hidden) - mask : sizes.fresh;
  if (!hidden || !std::memchr(hidden, 1, sizes.fresh - first)) return {first, {}};
  Seen seen = {0, {}};
  for (int64_t i = 0; i < sizes.fresh; ++i) {
    if (mask[i]) seen.listed.push_back(static_cast<int32_t>(i));
  }
  seen.count = seen.listed.size();
  return seen;
}

// Whether two queries see the same of the fresh tokens, up to the `rank`-th of each.
inline bool Alike(const Seen& a, const Seen& b, int64_t rank) {
  if (&a == &b || rank <= 0) return true;
  const int64_t count = std::min(a.count, rank);
  if (count != std::min(b.count, rank)) return false;
  if (a.listed.empty() && b.listed.empty()) return true;
  for (int64_t i = 0; i < count; ++i) {
    if (a.Which(i) != b.Which(i)) return false;
  }
  return true;
}

// A block's keys and values as products take them: float32 where they lie, bfloat16 widened once for all queries.
template <typename Entry>
class Floats;

template <>
class Floats<float> {
 public:
  explicit Floats(int64_t) {}
  const float* Keys(int, const float* from) { return from; }
  const float* Values(int, const float* from) { return from; }
};

template <>
class Floats<uint16_t> {
 public:
  explicit Floats(int64_t width) : width_(width), memory_(2 * kBlock * width) {}
  const float* Keys(int token, const uint16_t* from) { return Widen(from, 2 * token); }
  const float* Values(int token, const uint16_t* from) { return Widen(from, 2 * token + 1); }

 private:
  const float* Widen(const uint16_t* from, int64_t place) {
    float* to = &memory_[place * width_];
    int64_t i = 0;
    for (; i + kLanes <= width_; i += kLanes) Write(to + i, Read(from + i));
    for (; i < width_; ++i) {
      const uint32_t wide = static_cast<uint32_t>(from[i]) << 16;
      std::memcpy(to + i, &wide, sizeof wide);
    }
    return to;
  }

  int64_t width_;
  std::vector<float> memory_;
};

// `count` tokens of the cache from `slot` on; `floats` is theirs while they are used.
template <typename Entry>
Tokens Cached(const Sizes& sizes, const Inputs<Entry>& in, int64_t head, int64_t slot, int64_t count,
              Floats<Entry>& floats) {
  Tokens tokens;
  const int64_t lane = (sizes.layer * sizes.batch * sizes.heads + head) * sizes.capacity;
  const int32_t* positions = in.cache_positions ? in.cache_positions + head / sizes.heads * sizes.capacity : nullptr;
  for (int j = 0; j < count; ++j) {
    tokens.keys[j] = floats.Keys(j, in.keys + (lane + slot + j) * sizes.width);
    tokens.values[j] = floats.Values(j, in.values + (lane + slot + j) * sizes.width);
    tokens.positions[j] = positions ? positions[slot + j] : slot + j;
  }
  tokens.count = static_cast<int>(count);
  return tokens;
}

// Adds fresh tokens to those of the cache from `slot` on, up to kBlock in all.
template <typename Entry>
void AddFresh(const Sizes& sizes, const Inputs<Entry>& in, int64_t head, const Seen& seen, int64_t slot,
              Floats<Entry>& floats, Tokens& tokens) {
  const int64_t length = sizes.Length(in, head), row = head / sizes.heads, first = slot + tokens.count - length;
  for (int64_t rank = first; rank < std::min(seen.count, slot + kBlock - length); ++rank) {
    const int64_t place = row * sizes.fresh + seen.Which(rank);
    const int64_t at = (place * sizes.heads + head % sizes.heads) * sizes.width;
    tokens.keys[tokens.count] = floats.Keys(tokens.count, in.fresh_keys + at);
    tokens.values[tokens.count] = floats.Values(tokens.count, in.fresh_values + at);
    tokens.positions[tokens.count++] = in.positions[place];
  }
}

// Asks for pieces `first` to `last` of `pieces` of `count` tokens of the cache from `slot` on, so that they are there
// when their turn comes. GCC takes a call that does nothing else for one that does nothing.
template <typename Entry>
inline __attribute__((always_inline)) void Prefetch(const Sizes& sizes, const Inputs<Entry>& in, int64_t head, int64_t slot, int64_t count, int64_t first,
              int64_t last, int64_t pieces) {
  constexpr int64_t line = 64 / sizeof(Entry);
  if (count <= 0) return;
  const int64_t lane = (sizes.layer * sizes.batch * sizes.heads + head) * sizes.capacity;
  const int64_t at = (lane + slot) * sizes.width, lines = (count * sizes.width + line - 1) / line;
  const Entry *keys = in.keys + at, *values = in.values + at;
  const int64_t end = lines * last / pieces;
  for (int64_t i = lines * first / pieces; i < end; ++i) {
    __builtin_prefetch(keys + i * line, 0, 2);
    __builtin_prefetch(values + i * line, 0, 2);
  }
}

}  // namespace jaxspec

#endif  // JAXSPEC_SEEN_H_
