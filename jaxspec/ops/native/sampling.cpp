// Warps rows of logits with temperature, top-k, top-p and min-p, and draws tokens with Gumbel noise.
//
// XLA halves the range of a threshold 31 times, each time over the whole vocabulary, and computes the noise of every
// token. Here a row stays in the cache: a threshold is guessed from rough sums and then checked with two exact ones, and
// noise is computed only for tokens that may win. Exponentials, logarithms and sums round as XLA's do, operation by
// operation (`xla_math.h`), so thresholds, log-probabilities and tokens have the bits of XLA's.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "lanes.h"
#include "threefry.h"
#include "xla_math.h"

namespace ffi = xla::ffi;
using namespace jaxspec;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kMostNegative = std::numeric_limits<float>::lowest();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kBlock = 64;       // tokens with a common maximum
constexpr int64_t kChunk = 8192;     // tokens that a thread draws among at once
constexpr int64_t kFew = 32;         // candidates that are sorted
constexpr float kMostNoise = 23.0f;  // no noise is larger: uniforms are at least 2^-33

struct Parameters {
  float temperature;
  int32_t top_k;
  float top_p, log_min_p;
};

// The values from `i` on, and -inf beyond `count`.
inline Lanes ReadUpTo(const float* x, int64_t i, int64_t count) {
  if (i + kLanes <= count) return Read(x + i);
  Lanes found = Lanes{} - kInfinity;
  for (int64_t lane = 0; i + lane < count; ++lane) found[lane] = x[i + lane];
  return found;
}

int64_t RoundUp(int64_t n) { return (n + kBlock - 1) / kBlock * kBlock; }

// One row while it is warped. Tokens are padded with -inf to whole blocks.
struct Row {
  int64_t count, padded;
  float *scaled, *weights, *most;  // logits over temperature, their exponentials, and the largest of each block
  OrderedSum sum;

  // Sums the weights of tokens at or above a value, and of those above a second one.
  std::pair<float, float> Masses(float lowest, float second) {
    sum.Begin();
    for (int64_t i = 0; i < padded; i += kLanes) {
      const Lanes x = Read(scaled + i), weight = Read(weights + i);
      sum.Add(i, x >= lowest ? weight : Lanes{}, x > second ? weight : Lanes{});
    }
    return sum.End();
  }
};

struct Token {
  float value, weight;
};

// The tokens at which the weights of those at or above it first reach a goal, and a few around it, in decreasing order.
struct Found {
  std::vector<Token>& tokens;
  size_t place;  // past the end if the goal is not reached
};

// Sums of rough weights decide which tokens are looked at.
template <bool kCounts>
Found Search(const Row& row, float above, double goal, std::vector<Token>& tokens) {
  constexpr int kPivots = 8;
  const float pivots[kPivots] = {-0.5f, -1.5f, -3.0f, -5.0f, -8.0f, -12.0f, -20.0f, kMostNegative};
  Lanes sums[kPivots] = {}, least[kPivots];
  for (int i = 0; i < kPivots; ++i) least[i] = Lanes{} + std::max(pivots[i], above);
  for (int64_t i = 0; i < row.padded; i += kLanes) {
    const Lanes x = Read(row.scaled + i), weight = kCounts ? Lanes{} + 1.0f : Read(row.weights + i);
#pragma GCC unroll 8
    for (int j = 0; j < kPivots; ++j) sums[j] += x >= least[j] ? weight : Lanes{};
  }
  tokens.clear();
  int pivot = 0;
  while (pivot < kPivots && Sum(sums[pivot]) < goal) ++pivot;
  if (pivot == kPivots) return {tokens, 0};
  const float lowest = least[pivot][0], highest = pivot ? least[pivot - 1][0] : kInfinity;
  double total = pivot ? Sum(sums[pivot - 1]) : 0.0;
  for (int64_t block = 0; block < row.padded / kBlock; ++block) {
    if (row.most[block] < lowest) continue;
    const size_t before = tokens.size();
    tokens.resize(before + kBlock);
    Token* to = tokens.data() + before;
    for (int64_t i = block * kBlock; i < (block + 1) * kBlock; ++i) {
      *to = {row.scaled[i], kCounts ? 1.0f : row.weights[i]};
      to += (row.scaled[i] >= lowest) & (row.scaled[i] < highest);
    }
    tokens.resize(to - tokens.data());
  }
  auto less = [](const Token& a, const Token& b) { return a.value < b.value; };
  while (static_cast<int64_t>(tokens.size()) > kFew) {
    const auto [low, high] = std::minmax_element(tokens.begin(), tokens.end(), less);
    if (low->value == high->value) break;
    float middle = low->value + (high->value - low->value) / 2;
    if (!(middle > low->value)) middle = high->value;
    const auto upper = std::partition(tokens.begin(), tokens.end(), [=](const Token& one) { return one.value >= middle; });
    double mass = 0.0;
    for (auto one = tokens.begin(); one != upper; ++one) mass += one->weight;
    if (total + mass >= goal) {
      tokens.erase(upper, tokens.end());
    } else {
      total += mass;
      tokens.erase(tokens.begin(), upper);
    }
  }
  std::sort(tokens.begin(), tokens.end(), [](const Token& a, const Token& b) { return a.value > b.value; });
  size_t place = 0;
  while (place + 1 < tokens.size() && (total += tokens[place].weight) < goal) ++place;
  return {tokens, place};
}

// Halves the range of magnitudes, as XLA does. For rows whose rounding misleads the search.
float Bisect(Row& row, float above, float goal) {
  uint32_t low = 0;
  for (uint32_t step = 1u << 30; step > 0; step >>= 1) {
    const uint32_t last = low + step - 1;  // magnitudes up to here
    const float value = last < 0x7F800000u ? -FromBits(last) : -kInfinity;
    if (row.Masses(std::max(value, above), kInfinity).first < goal) low += step;
  }
  return low < 0x7F800000u ? -FromBits(low) : -kInfinity;
}

// Returns the largest value such that tokens at or above it weigh at least `goal`, and the weight of these.
std::pair<float, float> Nucleus(Row& row, float above, float goal, std::vector<Token>& memory) {
  if (!(goal > 0.0f)) return {0.0f, row.Masses(0.0f, kInfinity).first};
  const Found found = Search<false>(row, above, goal, memory);
  for (size_t place = found.place; place < found.tokens.size();) {
    const float value = found.tokens[place].value;
    const auto [with, without] = row.Masses(value, value);
    if (without < goal && with >= goal) return {value, with};
    // Rounding in the order of the sum: the neighbor it is, which has another value.
    if (with < goal) {
      while (place < found.tokens.size() && found.tokens[place].value == value) ++place;
    } else {
      while (place < found.tokens.size() && found.tokens[place].value == value) --place;
    }
  }
  const float value = Bisect(row, above, goal);
  return {value, row.Masses(std::max(value, above), kInfinity).first};
}

float KthLargest(const Row& row, int64_t k, std::vector<Token>& memory) {
  const Found found = Search<true>(row, -kInfinity, static_cast<double>(k), memory);
  return found.place < found.tokens.size() ? found.tokens[found.place].value : -kInfinity;
}

// A token and its score. Equal scores go to the lower token.
struct Best {
  float score;
  int64_t token;

  void Offer(float other, int64_t number) {
    if (other > score || (other == score && number < token)) *this = {other, number};
  }
};

// The highest score and its first token; NaN and the last token if any score is NaN.
Best Highest(const float* x, int64_t count) {
  Lanes most = Lanes{} - kInfinity;
  Integers places = {}, numbers = Integers{} - 1;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Lanes one = Read(x + i);
    places = one > most ? Integers{} + static_cast<int32_t>(i) : places;
    most = one > most ? one : most;
    numbers &= one == one;
  }
  Best best = {-kInfinity, 0};
  bool all = true;
  for (int lane = 0; i > 0 && lane < kLanes; ++lane) {
    best.Offer(most[lane], places[lane] + lane);
    all &= numbers[lane] != 0;
  }
  for (; i < count; ++i) {
    best.Offer(x[i], i);
    all &= x[i] == x[i];
  }
  return all ? best : Best{kNaN, count - 1};
}

// Computes `scaled`, `weights` and `most`, and returns the sum of the weights.
float Scale(Row& row, const float* logits, float maximum, float temperature) {
  const float inverse = 1.0f / temperature;  // XLA divides so
  row.sum.Begin();
  for (int64_t block = 0; block < row.padded; block += kBlock) {
    Lanes most = Lanes{} - kInfinity;
    for (int64_t i = block; i < block + kBlock; i += kLanes) {
      const Lanes x = (ReadUpTo(logits, i, row.count) - maximum) * inverse;
      const Lanes weight = Exp(x);
      Write(row.scaled + i, x);
      Write(row.weights + i, weight);
      row.sum.Add(i, weight);
      most = x > most ? x : most;
    }
    row.most[block / kBlock] = Largest(most);
  }
  return row.sum.End().first;
}

void WarpRow(const float* logits, int64_t count, const Parameters& given, float* out) {
  const auto [maximum, token] = Highest(logits, count);
  if (!(given.temperature > 0.0f) || given.top_k == 1) {
    std::fill_n(out, count, -kInfinity);
    out[token] = 0.0f;
    return;
  }
  if (!std::isfinite(maximum)) {
    std::fill_n(out, count, kNaN);
    return;
  }
  thread_local std::vector<float> memory;
  thread_local std::vector<Token> tokens;
  const int64_t padded = RoundUp(count), lanes = OrderedSum::LanesOf(count);
  memory.resize(2 * padded + padded / kBlock + 2 * lanes);
  float* const from = memory.data();
  Row row = {count, padded, from, from + padded, from + 2 * padded, {lanes, from + 2 * padded + padded / kBlock}};
  float total = Scale(row, logits, maximum, given.temperature), lowest = -kInfinity;
  if (given.top_k > 0) {
    lowest = KthLargest(row, given.top_k, tokens);
    total = row.Masses(lowest, kInfinity).first;
  }
  if (given.top_p < 1.0f) {
    const auto [value, mass] = Nucleus(row, lowest, given.top_p * total, tokens);
    if (value > lowest) total = mass;
    lowest = std::max(lowest, value);
  }
  if (given.log_min_p > lowest) {
    lowest = given.log_min_p;
    total = row.Masses(lowest, kInfinity).first;
  }
  const float normalizer = Log(total);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Lanes x = Read(row.scaled + i);
    Write(out + i, x >= lowest ? x - normalizer : Lanes{} - kInfinity);
  }
  for (; i < count; ++i) out[i] = row.scaled[i] >= lowest ? row.scaled[i] - normalizer : -kInfinity;
}

// The logarithm of the sum of the exponentials of one row; NaN if its maximum is not finite.
float LogSumExp(const float* logits, int64_t count) {
  const float maximum = Highest(logits, count).score;
  if (!std::isfinite(maximum)) return kNaN;
  thread_local std::vector<float> memory;
  const int64_t lanes = OrderedSum::LanesOf(count);
  memory.resize(2 * lanes);
  OrderedSum sum(lanes, memory.data());
  sum.Begin();
  for (int64_t i = 0; i < count; i += kLanes) sum.Add(i, Exp(ReadUpTo(logits, i, count) - maximum));
  return maximum + Log(sum.End().first);
}

// The log-probabilities of one row.
struct Plain {
  const float* log_probs;

  // Upper bounds of the log-probabilities from `i` on.
  Lanes Bounds(int64_t i, int64_t count) const { return ReadUpTo(log_probs, i, count); }

  float At(int64_t i) const { return log_probs[i]; }

  Best Likely(int64_t count) const { return Highest(log_probs, count); }
};

// The logarithm of what is left of the target's probabilities, times a factor, after those of a draft are taken away.
struct Residual {
  const float *target, *draft;
  float log_ratio;

  Lanes Bounds(int64_t i, int64_t count) const {
    const Lanes x = ReadUpTo(target, i, count) + log_ratio;
    return x > ReadUpTo(draft, i, count) ? x : Lanes{} - kInfinity;
  }

  float At(int64_t i) const {
    const float x = target[i] + log_ratio;
    return x > draft[i] ? x + Log1p(-Exp(Lanes{} + (draft[i] - x))[0]) : -kInfinity;
  }

  Best Likely(int64_t count) const {
    Lanes most = {};
    Integers places = {};
    for (int64_t i = 0; i < count; i += kLanes) {
      const Lanes x = Bounds(i, count);
      const Lanes left = Exp(x) - Exp(ReadUpTo(draft, i, count));
      const Integers more = Integers(left > most) & Integers(x > -kInfinity);
      places = more ? Integers{} + static_cast<int32_t>(i) : places;
      most = more ? left : most;
    }
    Best best = {-kInfinity, 0};
    for (int lane = 0; lane < kLanes; ++lane) {
      if (most[lane] > 0.0f) best.Offer(At(places[lane] + lane), places[lane] + lane);
    }
    return best;
  }
};

// The log-probabilities of one row but for one token.
struct Others {
  const float* target;
  int64_t without;

  Lanes Bounds(int64_t i, int64_t count) const {
    Lanes x = ReadUpTo(target, i, count);
    if (without >= i && without < i + kLanes) x[without - i] = -kInfinity;
    return x;
  }

  float At(int64_t i) const { return i == without ? -kInfinity : target[i]; }

  Best Likely(int64_t count) const {
    const Best before = Highest(target, std::min(without, count)), all = Highest(target, count);
    if (!(all.score == all.score) || all.token != without) return all;
    const Best after = Highest(target + without + 1, count - without - 1);
    return after.score > before.score ? Best{after.score, after.token + without + 1} : before;
  }
};

// Draws among the tokens of one row.
template <typename Scores>
struct Draw {
  Scores scores;
  const int32_t* ids;  // the places of tokens in the noise; null if they are the tokens
  int64_t count;
  Threefry noise;

  // The most likely token, a good one to compare others with.
  Best First() const {
    const Best likely = scores.Likely(count);
    if (!std::isfinite(likely.score)) return likely;
    return {likely.score + Gumbel(noise.At(ids ? ids[likely.token] : likely.token)), likely.token};
  }

  Words Bits(int64_t from) const {
    Words places;
    for (int lane = 0; lane < kLanes; ++lane) places[lane] = lane;
    places += static_cast<uint32_t>(from);
    if (ids) {
      for (int lane = 0; lane < kLanes; ++lane) places[lane] = ids[std::min(from + lane, count - 1)];
    }
    return noise.At(places);
  }

  // Looks for a better token in part of the row.
  void Among(int64_t first, int64_t last, Best& best) const {
    if (!(best.score < kInfinity)) return;
    constexpr int kEach = kBlock / kLanes;
    for (int64_t block = first; block < last; block += kBlock) {
      Lanes x[kEach], most = Lanes{} - kInfinity;
      for (int j = 0; j < kEach; ++j) {
        x[j] = scores.Bounds(block + j * kLanes, count);
        most = x[j] > most ? x[j] : most;
      }
      const float slack = 1e-3f + 1e-6f * std::abs(best.score);  // for rounding
      if (Largest(most) + kMostNoise < best.score - slack) continue;
      Words bits[kEach];
      Integers close[kEach], any = {};
#pragma GCC unroll 8
      for (int j = 0; j < kEach; ++j) bits[j] = Bits(block + j * kLanes);
      for (int j = 0; j < kEach; ++j) {
        close[j] = MayWin(x[j] - (best.score - slack), Uniform(bits[j]));
        any |= close[j];
      }
      if (!Any(any)) continue;
      for (int64_t i = 0; i < std::min(kBlock, count - block); ++i) {
        const int64_t j = i / kLanes, lane = i % kLanes;
        if (close[j][lane]) best.Offer(scores.At(block + i) + Gumbel(bits[j][lane]), block + i);
      }
    }
  }

 private:
  // Noise is at most -log(uniform), so a token wins only if its uniform is at most the exponential of its distance. The
  // line between two powers of two lies above it.
  static Integers MayWin(Lanes distance, Lanes uniform) {
    distance = distance > -80.0f ? distance : Lanes{} - 80.0f;
    distance = distance < 1.0f ? distance : Lanes{} + 1.0f;
    const Integers line = __builtin_convertvector(distance * (0x1p23f * 1.44269504f), Integers) + (127 << 23);
    return Integers(uniform <= reinterpret_cast<const Lanes&>(line));
  }
};

// Threads share the parts of the row.
template <typename Scores>
Best DrawRow(ffi::ThreadPool& pool, const Draw<Scores>& draw) {
  const int64_t chunks = (draw.count + kChunk - 1) / kChunk;
  std::vector<Best> found(chunks, draw.First());
  Best* to = found.data();
  Share(pool, chunks, [=](int64_t chunk) {
    draw.Among(chunk * kChunk, std::min(draw.count, (chunk + 1) * kChunk), to[chunk]);
  });
  for (const Best& other : found) found[0].Offer(other.score, other.token);
  return found[0];
}

// The mass of what is left of the target's probabilities, times a factor, after those of a draft are taken away.
float Excess(const Residual& row, int64_t count) {
  Lanes sum = {};
  for (int64_t i = 0; i < count; i += kLanes) {
    const Lanes x = ReadUpTo(row.target, i, count) + row.log_ratio, draft = ReadUpTo(row.draft, i, count);
    const Lanes left = x > draft ? Exp(x) - Exp(draft) : Lanes{};
    sum += Integers(x == x) & Integers(draft == draft) ? left : Lanes{} + kNaN;
  }
  return Sum(sum);
}

ffi::Error WarpCall(ffi::ThreadPool pool, ffi::BufferR2<ffi::F32> logits, ffi::BufferR1<ffi::F32> temperature,
                    ffi::BufferR1<ffi::S32> top_k, ffi::BufferR1<ffi::F32> top_p, ffi::BufferR1<ffi::F32> log_min_p,
                    ffi::ResultBufferR2<ffi::F32> out) {
  const int64_t rows = logits.dimensions()[0], count = logits.dimensions()[1];
  if (!HasShape(*out, {rows, count}) || !HasShape(temperature, {rows}) || !HasShape(top_k, {rows}) ||
      !HasShape(top_p, {rows}) || !HasShape(log_min_p, {rows})) {
    return ffi::Error::InvalidArgument("expected logits [rows, v], parameters [rows] and a result [rows, v]");
  }
  if (count == 0) return ffi::Error::Success();
  const float *from = logits.typed_data(), *temperatures = temperature.typed_data(), *masses = top_p.typed_data(),
              *least = log_min_p.typed_data();
  const int32_t* numbers = top_k.typed_data();
  float* to = out->typed_data();
  Share(pool, rows, [=](int64_t row) {
    WarpRow(from + row * count, count, {temperatures[row], numbers[row], masses[row], least[row]}, to + row * count);
  });
  return ffi::Error::Success();
}

ffi::Error LogSumExpCall(ffi::ThreadPool pool, ffi::BufferR2<ffi::F32> logits, ffi::ResultBufferR1<ffi::F32> out) {
  const int64_t rows = logits.dimensions()[0], count = logits.dimensions()[1];
  if (!HasShape(*out, {rows}) || count == 0) {
    return ffi::Error::InvalidArgument("expected logits [rows, v] and a result [rows]");
  }
  const float* from = logits.typed_data();
  float* to = out->typed_data();
  Share(pool, rows, [=](int64_t row) { to[row] = LogSumExp(from + row * count, count); });
  return ffi::Error::Success();
}

ffi::Error DrawCall(ffi::ThreadPool pool, ffi::BufferR2<ffi::F32> log_probs, ffi::BufferR2<ffi::U32> keys,
                    ffi::BufferR1<ffi::S32> ids, ffi::ResultBufferR1<ffi::S32> out, int64_t places,
                    bool partitionable) {
  const int64_t rows = log_probs.dimensions()[0], count = log_probs.dimensions()[1];
  const bool some = ids.element_count() > 0;
  if (!HasShape(keys, {rows, 2}) || !HasShape(*out, {rows}) || (some && !HasShape(ids, {count}))) {
    return ffi::Error::InvalidArgument("expected log-probabilities [rows, n], keys [rows, 2], ids [n] or none, "
                                       "and a result [rows]");
  }
  if (count == 0 || places < 1 || places > INT32_MAX || (!some && places != count)) {
    return ffi::Error::InvalidArgument("expected tokens, and noise for each");
  }
  for (int64_t i = 0; some && i < count; ++i) {
    if (ids.typed_data()[i] < 0 || ids.typed_data()[i] >= places) {
      return ffi::Error::InvalidArgument("an id is out of range");
    }
  }
  const int32_t* which = some ? ids.typed_data() : nullptr;
  for (int64_t row = 0; row < rows; ++row) {
    const uint32_t* key = keys.typed_data() + 2 * row;
    const Plain scores = {log_probs.typed_data() + row * count};
    const Draw<Plain> draw = {scores, which, count, {key[0], key[1], places, partitionable}};
    out->typed_data()[row] = static_cast<int32_t>(DrawRow(pool, draw).token);
  }
  return ffi::Error::Success();
}

ffi::Error DrawNextCall(ffi::ThreadPool pool, ffi::BufferR3<ffi::F32> target, ffi::BufferR3<ffi::F32> draft,
                        ffi::BufferR1<ffi::S32> tokens, ffi::BufferR1<ffi::S32> accepted,
                        ffi::BufferR1<ffi::PRED> rejected, ffi::BufferR1<ffi::F32> log_ratio,
                        ffi::BufferR2<ffi::U32> keys, ffi::ResultBufferR1<ffi::S32> out, bool partitionable) {
  const int64_t rows = target.dimensions()[0], places = target.dimensions()[1], count = target.dimensions()[2];
  const int64_t drafts = draft.dimensions()[1];
  if (!HasShape(draft, {rows, drafts, count}) || !HasShape(tokens, {rows}) || !HasShape(accepted, {rows}) ||
      !HasShape(rejected, {rows}) || !HasShape(log_ratio, {rows}) || !HasShape(keys, {rows, 2}) ||
      !HasShape(*out, {rows}) || count == 0 || (drafts != 0 && drafts + 1 != places)) {
    return ffi::Error::InvalidArgument("expected the target's log-probabilities [b, n + 1, v], the draft's [b, n, v] or "
                                       "none, tokens, numbers, a mask and ratios [b], keys [b, 2], and a result [b]");
  }
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t place = accepted.typed_data()[row], token = tokens.typed_data()[row];
    if (place < 0 || place >= places || token < 0 || token >= count) {
      return ffi::Error::InvalidArgument("a number of drafts or a token is out of range");
    }
    const float* const x = target.typed_data() + (row * places + place) * count;
    const uint32_t* key = keys.typed_data() + 2 * row;
    const Threefry noise = {key[0], key[1], count, partitionable};
    Best best = {-kInfinity, 0};
    if (rejected.typed_data()[row] && drafts == 0) {
      best = DrawRow(pool, Draw<Others>{{x, token}, nullptr, count, noise});
    } else if (rejected.typed_data()[row]) {
      const float* other = draft.typed_data() + (row * drafts + std::min(place, drafts - 1)) * count;
      best = DrawRow(pool, Draw<Residual>{{x, other, log_ratio.typed_data()[row]}, nullptr, count, noise});
    }
    // Nothing may be left.
    if (best.score == -kInfinity) best = DrawRow(pool, Draw<Plain>{{x}, nullptr, count, noise});
    out->typed_data()[row] = static_cast<int32_t>(best.token);
  }
  return ffi::Error::Success();
}

ffi::Error ExcessCall(ffi::ThreadPool pool, ffi::BufferR3<ffi::F32> target, ffi::BufferR3<ffi::F32> draft,
                      ffi::BufferR2<ffi::F32> log_ratio, ffi::ResultBufferR2<ffi::F32> out) {
  const int64_t rows = draft.dimensions()[0], drafts = draft.dimensions()[1], count = draft.dimensions()[2];
  if (!HasShape(target, {rows, drafts + 1, count}) || !HasShape(log_ratio, {rows, drafts}) ||
      !HasShape(*out, {rows, drafts})) {
    return ffi::Error::InvalidArgument("expected the target's log-probabilities [b, n + 1, v], the draft's [b, n, v], "
                                       "ratios [b, n] and a result [b, n]");
  }
  const float *targets = target.typed_data(), *others = draft.typed_data(), *ratios = log_ratio.typed_data();
  float* to = out->typed_data();
  Share(pool, rows * drafts, [=](int64_t number) {
    const int64_t row = number / drafts, i = number % drafts;
    // After the last draft there is none to be rejected.
    const Residual next = {targets + (row * (drafts + 1) + i + 1) * count, others + (number + 1) * count, ratios[number]};
    to[number] = i + 1 < drafts ? Excess(next, count) : 0.0f;
  });
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxspecWarp, WarpCall,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::BufferR2<ffi::F32>>()
                                  .Arg<ffi::BufferR1<ffi::F32>>()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .Arg<ffi::BufferR1<ffi::F32>>()
                                  .Arg<ffi::BufferR1<ffi::F32>>()
                                  .Ret<ffi::BufferR2<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxspecLogSumExp, LogSumExpCall,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::BufferR2<ffi::F32>>()
                                  .Ret<ffi::BufferR1<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxspecDraw, DrawCall,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::BufferR2<ffi::F32>>()
                                  .Arg<ffi::BufferR2<ffi::U32>>()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .Ret<ffi::BufferR1<ffi::S32>>()
                                  .Attr<int64_t>("places")
                                  .Attr<bool>("partitionable"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxspecDrawNext, DrawNextCall,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::BufferR3<ffi::F32>>()
                                  .Arg<ffi::BufferR3<ffi::F32>>()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .Arg<ffi::BufferR1<ffi::S32>>()
                                  .Arg<ffi::BufferR1<ffi::PRED>>()
                                  .Arg<ffi::BufferR1<ffi::F32>>()
                                  .Arg<ffi::BufferR2<ffi::U32>>()
                                  .Ret<ffi::BufferR1<ffi::S32>>()
                                  .Attr<bool>("partitionable"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(JaxspecExcess, ExcessCall,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::BufferR3<ffi::F32>>()
                                  .Arg<ffi::BufferR3<ffi::F32>>()
                                  .Arg<ffi::BufferR2<ffi::F32>>()
                                  .Ret<ffi::BufferR2<ffi::F32>>());
