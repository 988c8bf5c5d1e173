#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "formats/container/tensor.h"

namespace ingot::verify {

/// What is stored about the input [tokens, K] of one linear.
struct InputSummary {
  float min = 0, max = 0;          ///< 0 is always within
  std::vector<float> mean_square;  ///< [K], over all tokens
  [[nodiscard]] float amax() const { return max > -min ? max : -min; }
  /// The wider range, and the larger mean square of every column.
  void include(const InputSummary& other);
};

/// Sees the input of one linear, some tokens at a time. Mean squares are sums in double, token
/// after token, divided and rounded to FP32 once: how tokens are grouped, and threads, change no
/// bit.
class InputStatistics {
 public:
  explicit InputStatistics(std::size_t width) : square_sums_(width) {}

  void add(formats::MatrixView<const float> x, std::size_t threads);
  [[nodiscard]] std::uint64_t tokens() const { return tokens_; }
  /// At least one token must have been seen. kNonFinite for a NaN, an infinity, or a mean square
  /// beyond FP32.
  [[nodiscard]] InputSummary summary() const;

 private:
  std::uint64_t tokens_ = 0;
  float min_ = 0, max_ = 0;
  std::vector<double> square_sums_;
};

}  // namespace ingot::verify
