// The attention of some queries over one block of tokens: scores, weights, and sums of values.

#ifndef JAXSPEC_BLOCK_H_
#define JAXSPEC_BLOCK_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "lanes.h"

namespace jaxspec {

constexpr int kBlock = 32;      // slots whose keys and values stay in a core's cache while all queries read them
constexpr int kRows = 8;        // keys whose products with queries stay in registers; divides kLanes
constexpr int kHeld = 4;        // vectors of a query's sum of values that stay in registers
#if defined(__AVX512F__)
constexpr int kTogether = 3;  // queries that share each read, limited by the registers
#else
constexpr int kTogether = 1;
#endif
constexpr float kLowest = -1e30f;

// e^x for x <= 0, to two units in the last place; NaN stays NaN.
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
      // Explicit: the compiler would contract this or not, depending on kQueries.
      for (int row = 0; row < kLanes; ++row) out[query][row] = std::fma(queries[query][i], keys[row][i], out[query][row]);
    }
  }
}

// to[query][i] = to[query][i] * shrink[query] + sum over j of weights[query][j] * values[j][i], for kVectors of i
template <int kQueries, int kVectors>
inline void AddSome(float* const* to, int64_t at, const float* shrink, const float (*weights)[kBlock],
                    const float* const* values, int count) {
  Lanes sums[kQueries][kVectors];
#pragma GCC unroll 4
  for (int query = 0; query < kQueries; ++query) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[query][v] = Read(to[query] + at + v * kLanes) * shrink[query];
  }
  for (int j = 0; j < count; ++j) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const Lanes value = Kept(Read(values[j] + at + v * kLanes));
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
inline void Add(float* const* to, const float* shrink, const float (*weights)[kBlock], const float* const* values,
                int count, int64_t width) {
  int64_t i = 0;
  for (; i + kHeld * kLanes <= width; i += kHeld * kLanes) {
    AddSome<kQueries, kHeld>(to, i, shrink, weights, values, count);
  }
  for (; i + kLanes <= width; i += kLanes) AddSome<kQueries, 1>(to, i, shrink, weights, values, count);
  for (; i < width; ++i) {
    for (int query = 0; query < kQueries; ++query) {
      float total = to[query][i] * shrink[query];
      for (int j = 0; j < count; ++j) total = std::fma(values[j][i], weights[query][j], total);
      to[query][i] = total;
    }
  }
}

// Some tokens, in the order of their slots.
struct Tokens {
  const float* keys[kBlock];
  const float* values[kBlock];
  int64_t positions[kBlock];
  int count;
};

struct Query {
  const float* values;
  int64_t position;
  int64_t window;  // the number of positions that it sees, itself included; 0 is all
  float scale;
};

// A running softmax: `sums[width]` are relative to `maximum`.
struct State {
  float* sums;
  float weight;
  float maximum;
};

// Turns scores into weights relative to the new maximum; returns the factor to rescale earlier sums by.
inline float Weigh(const Query& query, const Tokens& tokens, float* scores, State& state) {
  for (int j = 0; j < kBlock; j += kLanes) Write(scores + j, j < tokens.count ? Read(scores + j) * query.scale : Lanes{});
  for (int j = tokens.count; j < kBlock; ++j) scores[j] = -INFINITY;
  for (int j = 0; j < tokens.count && query.window; ++j) {
    if (tokens.positions[j] <= query.position - query.window) scores[j] = -INFINITY;
  }
  Lanes highest = Lanes{} - INFINITY;
  for (int j = 0; j < kBlock; j += kLanes) {
    const Lanes some = Read(scores + j);
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
  const float* asked[kQueries];
  float* sums[kQueries];
  float shrink[kQueries];
  for (int query = 0; query < kQueries; ++query) {
    asked[query] = queries[query].values;
    sums[query] = states[query].sums;
  }
  for (int first = 0; first < tokens.count; first += kLanes) {
    const float* keys[kLanes];
    for (int row = 0; row < kLanes; ++row) keys[row] = tokens.keys[std::min(first + row, tokens.count - 1)];
    Lanes found[kQueries];
    Dots<kQueries>(asked, keys, width, found);
    for (int query = 0; query < kQueries; ++query) Write(scores[query] + first, found[query]);
  }
  for (int query = 0; query < kQueries; ++query) {
    shrink[query] = Weigh(queries[query], tokens, scores[query], states[query]);
  }
  Add<kQueries>(sums, shrink, scores, tokens.values, tokens.count, width);
}

}  // namespace jaxspec

#endif  // JAXSPEC_BLOCK_H_
