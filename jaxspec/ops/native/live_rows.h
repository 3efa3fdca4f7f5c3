// Products of rows of zeros are zeros: padding, such as a text's tokens after its end, costs nothing.

#ifndef JAXSPEC_LIVE_ROWS_H_
#define JAXSPEC_LIVE_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "lanes.h"

namespace jaxspec {

// The rows of x that have a number other than 0; NaN is one.
inline std::vector<int64_t> LiveRows(const float* x, int64_t rows, int64_t in) {
  std::vector<int64_t> live;
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = x + row * in;
    if (std::any_of(from, from + in, [](float value) { return value != 0.0f; })) live.push_back(row);
  }
  return live;
}

// Calls `multiply(x, y, rows)`, which returns whether it succeeded, with the live rows next to each other.
template <typename Multiply>
auto MultiplyLiveRows(const float* x, float* y, int64_t rows, int64_t in, int64_t out, const Multiply& multiply) {
  const std::vector<int64_t> live = LiveRows(x, rows, in);
  const int64_t count = live.size();
  if (count == rows) return multiply(x, y, rows);
  const std::unique_ptr<float[]> from(new float[count * in]), to(new float[count * out]);
  for (int64_t i = 0; i < count; ++i) std::copy_n(x + live[i] * in, in, &from[i * in]);
  auto done = multiply(from.get(), to.get(), count);
  for (int64_t row = 0, next = 0; row < rows; ++row) {
    if (next < count && live[next] == row) {
      std::copy_n(&to[next++ * out], out, y + row * out);
    } else {
      std::fill_n(y + row * out, out, 0.0f);
    }
  }
  return done;
}

// Consecutive rows of one expert.
struct Run {
  int64_t expert, first, rows;
};

// The runs of live rows of equal experts, which are numbers below `count`; the other rows of y become zeros. A run has
// rows of zeros between two live ones too: an expert's weights are read once.
inline xla::ffi::ErrorOr<std::vector<Run>> FindRuns(const int32_t* experts, const float* x, float* y, int64_t rows,
                                                    int64_t in, int64_t out, int64_t count) {
  std::vector<Run> found;
  const std::vector<int64_t> live = LiveRows(x, rows, in);
  for (int64_t row = 0, next = 0; row < rows; ++row) {
    const int64_t expert = experts[row];
    if (expert < 0 || expert >= count) {
      return xla::ffi::Unexpected(xla::ffi::Error::InvalidArgument("an expert is out of range"));
    }
    if (next == static_cast<int64_t>(live.size()) || live[next] != row) {
      std::fill_n(y + row * out, out, 0.0f);
      continue;
    }
    ++next;
    if (found.empty() || found.back().expert != expert) found.push_back({expert, row, 0});
    found.back().rows = row - found.back().first + 1;
  }
  return found;
}

}  // namespace jaxspec

#endif  // JAXSPEC_LIVE_ROWS_H_
