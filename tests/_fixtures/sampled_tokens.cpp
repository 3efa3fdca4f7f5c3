// Compares warped rows and drawn tokens with plain loops. A program of its own, for processors that are emulated.

#include "sampling.cpp"

#include <cstdio>
#include <random>

namespace {

std::mt19937 draw(0);

// The log-probabilities of a row in float64, from a threshold found by sorting.
std::vector<double> Warped(const std::vector<float>& logits, const Parameters& given) {
  const double most = *std::max_element(logits.begin(), logits.end());
  std::vector<double> scaled;
  for (float one : logits) scaled.push_back((one - most) / given.temperature);
  std::vector<double> sorted = scaled;
  std::sort(sorted.rbegin(), sorted.rend());
  double lowest = -INFINITY, total = 0.0, mass = 0.0;
  if (given.top_k > 0 && given.top_k <= static_cast<int64_t>(sorted.size())) lowest = sorted[given.top_k - 1];
  for (double one : sorted) total += one >= lowest ? std::exp(one) : 0.0;
  for (double one : sorted) {
    if (given.top_p >= 1.0f || mass >= given.top_p * total) break;
    mass += std::exp(one);
    if (mass >= given.top_p * total) lowest = std::max(lowest, one);
  }
  lowest = std::max<double>(lowest, given.log_min_p);
  total = 0.0;
  for (double one : scaled) total += one >= lowest ? std::exp(one) : 0.0;
  for (double& one : scaled) one = one >= lowest ? one - std::log(total) : -INFINITY;
  return scaled;
}

// Draws from a row, and compares with a loop over its tokens.
template <typename Scores>
int CheckDraw(const Scores& scores, int64_t count, bool partitionable) {
  const Draw<Scores> row = {scores, nullptr, count, {draw(), draw(), count, partitionable}};
  Best best = row.First(), plain = {-INFINITY, 0};
  row.Among(0, count, best);
  for (int64_t i = 0; i < count; ++i) plain.Offer(scores.At(i) + Gumbel(row.noise.At(i)), i);
  return best.token != plain.token || best.score != plain.score;
}

int Check(int64_t count, const Parameters& given, bool partitionable) {
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> logits(count), found(count);
  for (float& one : logits) one = normal(draw);
  WarpRow(logits.data(), count, given, found.data());
  const std::vector<double> expected = Warped(logits, given);
  int wrong = 0;
  for (int64_t i = 0; i < count; ++i) {
    const bool kept = std::isfinite(found[i]);
    wrong += kept != std::isfinite(expected[i]) || (kept && !(std::abs(found[i] - expected[i]) < 1e-4));
  }
  for (float& one : logits) one += normal(draw) / 3.0f;
  std::vector<float> other(count);
  WarpRow(logits.data(), count, given, other.data());
  const Residual left = {found.data(), other.data(), -0.1f};
  double mass = 0.0;
  for (int64_t i = 0; i < count; ++i) mass += std::max(0.0, std::exp(found[i] - 0.1) - std::exp(other[i]));
  wrong += !(std::abs(Excess(left, count) - mass) < 1e-5);
  wrong += CheckDraw(Plain{found.data()}, count, partitionable) + CheckDraw(left, count, partitionable);
  wrong += CheckDraw(Others{found.data(), Highest(found.data(), count).token}, count, partitionable);
  if (wrong) std::printf("%d tokens, top-k %d, top-p %g: %d\n", static_cast<int>(count), given.top_k, given.top_p, wrong);
  return wrong;
}

}  // namespace

int main() {
  // The first words of jax.random.bits(jax.random.key(42), (4,), "uint32"), in both of its forms.
  const Threefry one = {0, 42, 4, true}, other = {0, 42, 4, false};
  int wrong = one.At(0) != 2098992034u || other.At(0) != 2465931498u || one.At(3) != 2409546199u || other.At(3) != 267815257u;
  for (int64_t count : {2, 9, 64, 65, 310, 3000}) {
    for (const Parameters& given : {Parameters{1.0f, 0, 1.0f, -INFINITY}, Parameters{0.7f, 0, 0.9f, -INFINITY},
                                    Parameters{1.3f, 20, 0.8f, -4.0f}, Parameters{1.0f, 7, 1.0f, -INFINITY}}) {
      for (int again = 0; again < 20; ++again) wrong += Check(count, given, again % 2 == 0);
    }
  }
  return wrong != 0;
}
