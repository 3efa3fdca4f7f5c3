// Compares stored weights with plain loops: their repacking, their values, and their products with rounded activations.
// A program of its own, for processors that are emulated.

#include "stored.cpp"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>

namespace {

constexpr int64_t kOut = 37, kIn = 768, kMost = 11;  // tiles and groups of rows that are not full
std::mt19937 draw(0);

double Half(uint16_t bits) {
  const int power = bits >> 10 & 31, rest = bits & 1023;
  const double size = power ? std::ldexp(1024 + rest, power - 25) : std::ldexp(rest, -24);
  return bits >> 15 ? -size : size;
}

// A weight, and the size of the two parts that it may have.
struct Weight {
  double value, size;
};

// Rows of blocks of any bytes with finite scales.
template <typename Format>
std::vector<uint8_t> DrawFile(std::vector<Weight>& weights) {
  const int64_t blocks = kIn / Format::kInputs;
  std::vector<uint8_t> file(kOut * blocks * Format::kBytes);
  for (int64_t b = 0; b < kOut * blocks; ++b) {
    Block block = {};
    do {
      for (int i = 0; i < Format::kBytes; ++i) file[b * Format::kBytes + i] = draw();
      Format::Read(&file[b * Format::kBytes], block);
    } while (!IsFinite(block.scale) || (Format::kMinima && !IsFinite(block.minimum)));
    for (int i = 0; i < Format::kInputs; ++i) {
      const int part = i / (kGroup / Format::kHalves);
      const int factor = Format::kFactors ? block.factors[part] : 1, least = Format::kFactors ? block.minima[part] : 1;
      const double scaled = Half(block.scale) * factor * (Table<Format>::Look(int{block.codes[i]}) - Format::kOffset);
      const double minimum = Format::kMinima ? Half(block.minimum) * least : 0.0;
      weights.push_back({scaled + minimum, std::abs(scaled) + std::abs(minimum)});
    }
  }
  return file;
}

int At(const Group& group, int i) {
#if JAXSPEC_BYTE_PRODUCTS
  return group.fine ? group.values[i] * 256 + group.low[i] : group.values[i];
#else
  return group.values[i / 4 * 4 + i % 2 * 2 + i % 4 / 2];
#endif
}

// Rows as the kernels round them, which are near the numbers that they are of.
int CheckRounding(const std::vector<float>& x, const std::vector<Group>& groups) {
  int wrong = 0, fine = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const Group& group = groups[i / kGroup];
    wrong += !(std::abs(x[i] - At(group, i % kGroup) * static_cast<double>(group.scale)) <= 0.5001 * group.scale);
    fine += i % kGroup == 0 && group.fine;
  }
  return wrong + (fine != kMost * (kIn / kGroup / kFine));
}

template <typename Format>
void Multiply(const std::vector<uint8_t>& tiles, const Group* x, int64_t rows, std::vector<float>& y) {
  const int64_t bytes = kIn / Format::kInputs * Tile<Format>::kBytes;
  y.assign(rows * kOut, 0.0f);
  for (int64_t tile = 0; tile < CountTiles(kOut); ++tile) {
    kKernelsOf<Format>.product(&tiles[tile * bytes], x, rows, kIn / kGroup, &y[tile * kLanes], kOut,
                               std::min<int64_t>(kLanes, kOut - tile * kLanes));
  }
}

template <typename Format>
int Check() {
  std::vector<Weight> weights;
  const std::vector<uint8_t> file = DrawFile<Format>(weights);
  const int64_t blocks = kIn / Format::kInputs, tiles = CountTiles(kOut), bytes = Tile<Format>::kBytes;
  std::vector<uint8_t> packed(tiles * blocks * bytes);
  int wrong = JaxspecPack(Format::kName, file.data(), kOut, kIn, 0, tiles, packed.data()) != 0;
  for (int64_t o = 0; o < kOut; ++o) {
    std::vector<float> row(kIn);
    for (int64_t b = 0; b < blocks; ++b) {
      Tile<Format>::Unpack(&packed[(o / kLanes * blocks + b) * bytes], o % kLanes, &row[b * Format::kInputs]);
    }
    for (int64_t i = 0; i < kIn; ++i) {
      wrong += !(std::abs(row[i] - weights[o * kIn + i].value) <= 1e-6 * weights[o * kIn + i].size);
    }
  }
  std::normal_distribution<float> normal;
  std::vector<float> x(kMost * kIn);
  for (float& each : x) each = normal(draw) * std::exp(normal(draw));
  std::vector<Group> rounded(kMost * kIn / kGroup);
  for (int64_t row = 0; row < kMost; ++row) QuantizeRow(&x[row * kIn], kIn / kGroup, &rounded[row * kIn / kGroup]);
  wrong += CheckRounding(x, rounded);
  std::vector<float> y, alone;
  Multiply<Format>(packed, rounded.data(), kMost, y);
  for (int64_t row = 0; row < kMost; ++row) {
    Multiply<Format>(packed, &rounded[row * kIn / kGroup], 1, alone);
    wrong += std::memcmp(alone.data(), &y[row * kOut], kOut * sizeof(float)) != 0;
    for (int64_t o = 0; o < kOut; ++o) {
      double sum = 0.0, size = 0.0;
      for (int64_t i = 0; i < kIn; ++i) {
        const Group& group = rounded[(row * kIn + i) / kGroup];
        const double factor = At(group, i % kGroup) * static_cast<double>(group.scale);
        sum += factor * weights[o * kIn + i].value;
        size += std::abs(factor) * weights[o * kIn + i].size;
      }
      wrong += !(std::abs(y[row * kOut + o] - sum) <= 2e-5 * size);
    }
  }
  std::printf("%s %d\n", Format::kName, wrong);
  return wrong;
}

}  // namespace

int main() {
  std::printf("lanes %d, byte products %d\n", kLanes, JAXSPEC_BYTE_PRODUCTS);
  int wrong = 0;
#define JAXSPEC_CHECK(Format) wrong += Check<Format>();
  JAXSPEC_FORMATS(JAXSPEC_CHECK)
  return wrong != 0;
}
