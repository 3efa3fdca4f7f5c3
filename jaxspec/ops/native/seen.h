// The tokens that a query sees, in the order of their slots in the cache, or the slots that they would have after it.

#ifndef JAXSPEC_SEEN_H_
#define JAXSPEC_SEEN_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "block.h"
#include "half.h"

namespace jaxspec {

// The keys or values of a cache: float32, or float16 if `halves` is set.
struct Stored {
  const float* floats;
  const uint16_t* halves;

  // The number at `place`; float16 is widened to `room`, which has room for `count`.
  const float* At(int64_t place, int64_t count, float* room) const {
    if (!halves) return floats + place;
    Widen(halves + place, count, room);
    return room;
  }

  void Prefetch(int64_t place) const {
    if (halves) return __builtin_prefetch(halves + place, 0, 2);
    __builtin_prefetch(floats + place, 0, 2);
  }

  int64_t Bytes() const { return halves ? sizeof *halves : sizeof *floats; }
};

struct Inputs {
  const float *queries, *fresh_keys, *fresh_values;
  Stored keys, values;
  const int32_t *positions, *lengths, *cache_positions;
  const bool* mask;
  const float* sinks;  // of each query head, or null
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

// The place of a slot's key and value in the cache.
inline int64_t PlaceOf(const Sizes& sizes, int64_t head, int64_t slot) {
  return ((sizes.layer * sizes.batch * sizes.heads + head) * sizes.capacity + slot) * sizes.width;
}

// `count` tokens of the cache from `slot` on. Those of a float16 cache are valid until the thread's next call.
inline Tokens Cached(const Sizes& sizes, const Inputs& in, int64_t head, int64_t slot, int64_t count) {
  Tokens tokens;
  thread_local std::vector<float> room;
  room.resize(in.keys.halves ? 2 * kBlock * sizes.width : 0);
  const int64_t place = PlaceOf(sizes, head, slot);
  const float* keys = in.keys.At(place, count * sizes.width, room.data());
  const float* values = in.values.At(place, count * sizes.width, room.data() + kBlock * sizes.width);
  const int32_t* positions = in.cache_positions ? in.cache_positions + head / sizes.heads * sizes.capacity : nullptr;
  for (int64_t j = 0; j < count; ++j) {
    tokens.keys[j] = keys + j * sizes.width;
    tokens.values[j] = values + j * sizes.width;
    tokens.positions[j] = positions ? positions[slot + j] : slot + j;
  }
  tokens.count = static_cast<int>(count);
  return tokens;
}

// Up to kBlock tokens from `slot` on: those of the cache, then fresh ones.
inline Tokens Both(const Sizes& sizes, const Inputs& in, int64_t head, const Seen& seen, int64_t slot,
                   const Tokens& cached) {
  const int64_t length = sizes.Length(in, head), row = head / sizes.heads, first = slot + cached.count - length;
  Tokens tokens = cached;
  for (int64_t rank = first; rank < std::min(seen.count, slot + kBlock - length); ++rank) {
    const int64_t place = row * sizes.fresh + seen.Which(rank);
    const int64_t at = (place * sizes.heads + head % sizes.heads) * sizes.width;
    tokens.keys[tokens.count] = in.fresh_keys + at;
    tokens.values[tokens.count] = in.fresh_values + at;
    tokens.positions[tokens.count++] = in.positions[place];
  }
  return tokens;
}

// Prefetches pieces `first` to `last` of `pieces` of the `count` tokens of the cache from `slot` on.
inline void Prefetch(const Sizes& sizes, const Inputs& in, int64_t head, int64_t slot, int64_t count, int64_t first,
                     int64_t last, int64_t pieces) {
  if (count <= 0) return;
  const int64_t line = 64 / in.keys.Bytes(), lines = (count * sizes.width + line - 1) / line;
  const int64_t place = PlaceOf(sizes, head, slot);
  for (int64_t i = lines * first / pieces; i < lines * last / pieces; ++i) {
    in.keys.Prefetch(place + i * line);
    in.values.Prefetch(place + i * line);
  }
}

}  // namespace jaxspec

#endif  // JAXSPEC_SEEN_H_
