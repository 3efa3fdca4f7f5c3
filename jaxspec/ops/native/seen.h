// The tokens that a query sees, in the order of their slots in the cache, or the slots that they would have after it.

#ifndef JAXSPEC_SEEN_H_
#define JAXSPEC_SEEN_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "block.h"

namespace jaxspec {

struct Inputs {
  const float *queries, *fresh_keys, *fresh_values, *keys, *values;
  const int32_t *positions, *lengths, *cache_positions;
  const bool* mask;
};

struct Sizes {
  int64_t batch, time, heads, group, width, capacity, fresh, window, layer;
  float scale;

  int64_t Queries() const { return time * group; }

  // The number of filled slots of a head's row.
  int64_t Length(const Inputs& in, int64_t head) const {
    return std::clamp<int64_t>(in.lengths[head / heads], 0, capacity);
  }
};

// The fresh tokens that one of them sees: the first `count`, or those listed.
struct Seen {
  int64_t count;
  std::vector<int32_t> listed;

  int64_t Which(int64_t rank) const { return listed.empty() ? rank : listed[rank]; }
};

inline Seen SeenAt(const Sizes& sizes, const Inputs& in, int64_t head, int64_t time) {
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

// Whether two queries see the same fresh tokens, up to the `rank`-th of each.
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

// `count` tokens of the cache from `slot` on.
inline Tokens Cached(const Sizes& sizes, const Inputs& in, int64_t head, int64_t slot, int64_t count) {
  Tokens tokens;
  const int64_t lane = (sizes.layer * sizes.batch * sizes.heads + head) * sizes.capacity;
  const int32_t* positions = in.cache_positions ? in.cache_positions + head / sizes.heads * sizes.capacity : nullptr;
  for (int64_t j = 0; j < count; ++j) {
    tokens.keys[j] = in.keys + (lane + slot + j) * sizes.width;
    tokens.values[j] = in.values + (lane + slot + j) * sizes.width;
    tokens.positions[j] = positions ? positions[slot + j] : slot + j;
  }
  tokens.count = static_cast<int>(count);
  return tokens;
}

// Up to kBlock tokens from `slot` on: cached, then fresh ones.
inline Tokens Both(const Sizes& sizes, const Inputs& in, int64_t head, const Seen& seen, int64_t slot) {
  const int64_t length = sizes.Length(in, head), cached = std::clamp<int64_t>(length - slot, 0, kBlock);
  Tokens tokens = Cached(sizes, in, head, slot, cached);
  const int64_t row = head / sizes.heads, first = slot + cached - length;
  for (int64_t rank = first; rank < std::min(seen.count, slot + kBlock - length); ++rank) {
    const int64_t place = row * sizes.fresh + seen.Which(rank);
    const int64_t at = (place * sizes.heads + head % sizes.heads) * sizes.width;
    tokens.keys[tokens.count] = in.fresh_keys + at;
    tokens.values[tokens.count] = in.fresh_values + at;
    tokens.positions[tokens.count++] = in.positions[place];
  }
  return tokens;
}

// Prefetches pieces `first` to `last` of `pieces` of the `count` numbers after these tokens of a cache.
inline void Prefetch(const Tokens& tokens, int64_t count, int64_t first, int64_t last, int64_t pieces) {
  constexpr int64_t line = 64 / sizeof(float);
  if (count <= 0) return;
  const int64_t lines = (count + line - 1) / line, beyond = tokens.keys[1] - tokens.keys[0];
  const float *keys = tokens.keys[kBlock - 1] + beyond, *values = tokens.values[kBlock - 1] + beyond;
  for (int64_t i = lines * first / pieces; i < lines * last / pieces; ++i) {
    __builtin_prefetch(keys + i * line, 0, 2);
    __builtin_prefetch(values + i * line, 0, 2);
  }
}

}  // namespace jaxspec

#endif  // JAXSPEC_SEEN_H_
