// Vectors of the width that the processor has, and work that XLA's threads share.

#ifndef JAXSPEC_LANES_H_
#define JAXSPEC_LANES_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "xla/ffi/api/ffi.h"

namespace jaxspec {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#else
constexpr int kLanes = 8;
#endif

typedef float Lanes __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
typedef float Four __attribute__((vector_size(16), may_alias));
typedef uint16_t Halves __attribute__((vector_size(2 * kLanes), aligned(2), may_alias));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes), may_alias));
typedef int32_t Integers __attribute__((vector_size(4 * kLanes), may_alias));

inline Lanes Read(const float* from) { return *reinterpret_cast<const Lanes*>(from); }

// bfloat16 is the upper half of a float32.
inline Lanes Read(const uint16_t* from) {
  Words wide = __builtin_convertvector(*reinterpret_cast<const Halves*>(from), Words) << 16;
  return reinterpret_cast<Lanes&>(wide);
}

inline void Write(float* to, Lanes x) { *reinterpret_cast<Lanes*>(to) = x; }

// By fours: one lane after the other, each addition would wait for the one before it.
inline float Sum(Lanes x) {
  Four parts[kLanes / 4];
  __builtin_memcpy(parts, &x, sizeof x);
  Four sum = parts[0];
#pragma GCC unroll 4
  for (int part = 1; part < kLanes / 4; ++part) sum += parts[part];
  return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

// Chunks that threads take one after the other. The caller takes some too and waits only for those that were taken, so
// it never waits for a thread that does not come.
struct Chunks {
  std::atomic<int64_t> next{0}, done{0};
  int64_t count = 0;

  template <typename Work>
  void Take(const Work& work) {
    for (int64_t chunk; (chunk = next.fetch_add(1)) < count;) {
      work(chunk);
      done.fetch_add(1, std::memory_order_release);
    }
  }
};

// Runs `work(0)` to `work(count - 1)`, whose copies must outlive the call: a thread may come when all is done.
template <typename Work>
void Share(xla::ffi::ThreadPool& pool, int64_t count, const Work& work) {
  auto chunks = std::make_shared<Chunks>();
  chunks->count = count;
  const int64_t helpers = std::min<int64_t>(pool.num_threads(), count) - 1;
  for (int64_t helper = 0; helper < helpers; ++helper) pool.Schedule([=] { chunks->Take(work); });
  chunks->Take(work);
  while (chunks->done.load(std::memory_order_acquire) < chunks->count) std::this_thread::yield();
}

}  // namespace jaxspec

#endif  // JAXSPEC_LANES_H_
