// Compares products of float32 and bfloat16 weights with plain loops. A program of its own, for processors that are
// emulated.

#include "product.cpp"

#include <cstdio>
#include <random>
#include <vector>

namespace {

std::mt19937 draw(0);

template <typename Weight>
int Check(int64_t rows, int64_t in, int64_t out) {
  std::normal_distribution<float> normal;
  std::vector<float> x(rows * in), y(rows * out);
  std::vector<Weight> w(out * in);
  for (float& each : x) each = normal(draw);
  for (Weight& each : w) {
    const float value = normal(draw);
    uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    if constexpr (sizeof(Weight) == 2) each = bits >> 16;
    else each = value;
  }
  AnyRows(x.data(), w.data(), y.data(), rows, in, out, 0, out);
  int wrong = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < out; ++o) {
      double sum = 0.0, size = 0.0;
      for (int64_t i = 0; i < in; ++i) {
        const double part = static_cast<double>(x[r * in + i]) * One(&w[o * in + i]);
        sum += part;
        size += std::abs(part);
      }
      wrong += !(std::abs(y[r * out + o] - sum) <= 1e-5 * size);
    }
  }
  std::printf("%d bytes, %d x %d x %d: %d\n", static_cast<int>(sizeof(Weight)), static_cast<int>(rows),
              static_cast<int>(in), static_cast<int>(out), wrong);
  return wrong;
}

}  // namespace

int main() {
  int wrong = 0;
  for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 19}) {
    wrong += Check<float>(rows, 83, 29) + Check<uint16_t>(rows, 83, 29);
  }
  return wrong != 0;
}
