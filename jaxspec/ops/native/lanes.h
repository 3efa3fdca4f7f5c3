// Vectors of the processor's width, work shared by XLA's threads, and shapes of buffers.

#ifndef JAXSPEC_LANES_H_
#define JAXSPEC_LANES_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

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

// Keeps a read value in a register. GCC would read it again for every product with it, and processors do one or two
// reads in the time of two products.
inline Lanes Kept(Lanes x) {
#if defined(__AVX__)
  asm("" : "+v"(x));
#endif
  return x;
}

inline void Write(float* to, Lanes x) { *reinterpret_cast<Lanes*>(to) = x; }

#if defined(__clang__) || __GNUC__ >= 12
#define JAXSPEC_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define JAXSPEC_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, Integers{__VA_ARGS__})
#endif

// The source of `lane` of a fold: the first halves of `a`'s groups, then those of `b`'s.
constexpr int FirstHalf(int group, int lane) {
  const int from = lane / (group / 2), groups = kLanes / group;
  return (from < groups ? from * group : kLanes + (from - groups) * group) + lane % (group / 2);
}

struct Added {
  Lanes operator()(Lanes a, Lanes b) const { return a + b; }
};

template <int kGroup, typename Joined, int... kLane>
inline Lanes Fold(Lanes a, Lanes b, std::integer_sequence<int, kLane...>) {
  return Joined()(JAXSPEC_SHUFFLE(a, b, FirstHalf(kGroup, kLane)...),
                  JAXSPEC_SHUFFLE(a, b, FirstHalf(kGroup, kLane) + kGroup / 2 ...));
}

// Adds (or joins by `Joined`) the two halves of each group of `kGroup` lanes: those of `a`, then those of `b`.
template <int kGroup, typename Joined = Added>
inline Lanes Fold(Lanes a, Lanes b) {
  return Fold<kGroup, Joined>(a, b, std::make_integer_sequence<int, kLanes>());
}

// Folds `kCount` vectors, a power of two, with groups of `kGroup` lanes, into one: a tree, whose additions do not wait
// for those of other vectors. With groups of all lanes, lane i of the fold of kLanes vectors is the sum of the i-th.
template <int kCount, int kGroup = kLanes, typename Joined = Added>
inline __attribute__((always_inline)) Lanes FoldAll(const Lanes* x) {
  if constexpr (kCount == 1) {
    return *x;
  } else {
    constexpr int half = kCount / 2;
    return Fold<2 * kGroup / kCount, Joined>(FoldAll<half, kGroup, Joined>(x), FoldAll<half, kGroup, Joined>(x + half));
  }
}

template <int kGroup>
inline Lanes FoldSelf(Lanes x) {
  if constexpr (kGroup == 1) {
    return x;
  } else {
    return FoldSelf<kGroup / 2>(Fold<kGroup>(x, x));
  }
}

// The sums over the lanes of `kCount` vectors, a power of two, in the first lanes.
template <int kCount>
inline __attribute__((always_inline)) Lanes SumEach(const Lanes* x) {
  return FoldSelf<kLanes / kCount>(FoldAll<kCount>(x));
}

inline float Sum(Lanes x) { return SumEach<1>(&x)[0]; }

inline float Largest(Lanes x) {
  Four parts[kLanes / 4];
  __builtin_memcpy(parts, &x, sizeof x);
  Four most = parts[0];
#pragma GCC unroll 4
  for (int part = 1; part < kLanes / 4; ++part) most = parts[part] > most ? parts[part] : most;
  return std::max(std::max(most[0], most[2]), std::max(most[1], most[3]));
}

// Chunks of work in one range per thread. Each thread takes the chunks of its own range in order, so that it prefetches
// for itself, then those that others have not reached. The caller waits only for chunks that were taken, so it never
// waits for a thread that does not start.
class Chunks {
 public:
  Chunks(int64_t count, int64_t threads) : count_(count), threads_(threads), ranges_(new Range[threads]) {
    for (int64_t i = 0; i < threads; ++i) {
      ranges_[i].next = count * i / threads;
      ranges_[i].last = count * (i + 1) / threads;
    }
  }

  template <typename Work>
  void Take(int64_t thread, const Work& work) {
    for (int64_t i = 0; i < threads_; ++i) {
      Range& range = ranges_[(thread + i) % threads_];
      for (int64_t chunk; (chunk = range.next.fetch_add(1)) < range.last;) {
        work(chunk);
        done_.fetch_add(1, std::memory_order_release);
      }
    }
  }

  void Wait() const {
    while (done_.load(std::memory_order_acquire) < count_) std::this_thread::yield();
  }

 private:
  struct alignas(64) Range {
    std::atomic<int64_t> next;
    int64_t last;
  };

  std::atomic<int64_t> done_{0};
  const int64_t count_, threads_;
  const std::unique_ptr<Range[]> ranges_;
};

// Runs `work(0)` to `work(count - 1)`, whose copies must outlive the call: a thread may start when all is done.
template <typename Work>
void Share(xla::ffi::ThreadPool& pool, int64_t count, const Work& work) {
  if (count <= 0) return;
  const int64_t threads = std::min<int64_t>(pool.num_threads(), count);
  auto chunks = std::make_shared<Chunks>(count, threads);
  for (int64_t helper = 1; helper < threads; ++helper) pool.Schedule([=] { chunks->Take(helper, work); });
  chunks->Take(0, work);
  chunks->Wait();
}

// The weight of one layer, among those of all layers.
inline xla::ffi::ErrorOr<xla::ffi::AnyBuffer> OfLayer(xla::ffi::BufferR0<xla::ffi::S32> layer,
                                                      const xla::ffi::RemainingArgs& weights) {
  const int64_t number = *layer.typed_data();
  if (number < 0 || number >= static_cast<int64_t>(weights.size())) {
    return xla::ffi::Unexpected(xla::ffi::Error::InvalidArgument("expected a layer that has weights"));
  }
  return weights.get<xla::ffi::AnyBuffer>(number);
}

// Whether a buffer has this shape.
template <typename Buffer>
bool HasShape(const Buffer& buffer, std::initializer_list<int64_t> shape) {
  const auto sizes = buffer.dimensions();
  return std::equal(sizes.begin(), sizes.end(), shape.begin(), shape.end());
}

}  // namespace jaxspec

#endif  // JAXSPEC_LANES_H_
