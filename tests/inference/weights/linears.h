#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <random>
#include <vector>

#include "inference/weights/expert_store.h"
#include "inference/weights/weight_store.h"

namespace ingot::testing {

inline std::filesystem::path example() {
  return std::filesystem::path(INGOT_SOURCE_DIR) / "examples/tiny-v32";
}

inline inference::Range all(std::uint64_t n) {
  return {.first = 0, .count = static_cast<std::size_t>(n)};
}

/// Some experts of each of these layers.
inline std::vector<inference::ExpertId> experts_of(std::initializer_list<std::uint32_t> layers,
                                                   std::uint32_t first, std::uint32_t count) {
  std::vector<inference::ExpertId> experts;
  for (const std::uint32_t layer : layers) {
    for (std::uint32_t e = first; e < first + count; ++e)
      experts.push_back({.layer = layer, .expert = e});
  }
  return experts;
}

/// A matrix as a whole.
inline inference::Linear whole(const inference::WeightStore& store,
                               const formats::LogicalTensor& tensor) {
  return store.linear(tensor.name, tensor.shape[0], tensor.shape[1], all(tensor.shape[0]),
                      all(tensor.shape[1]));
}

/// Every element, by the kernels' decoder.
inline std::vector<float> decoded_rows(const inference::Linear& linear) {
  std::vector<float> values(linear.rows() * linear.cols());
  for (std::size_t r = 0; r < linear.rows(); ++r) {
    inference::decode_row(linear.weight(), r,
                          std::span(values).subspan(r * linear.cols(), linear.cols()));
  }
  return values;
}

inline std::vector<float> normal_values(std::size_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

inline formats::MatrixView<const float> rows_of(const std::vector<float>& values,
                                                std::size_t rows) {
  const std::size_t cols = values.size() / rows;
  return {values.data(), rows, cols, cols};
}

/// The linear applied to rows of x.
inline std::vector<float> applied(const inference::Linear& linear, const std::vector<float>& x,
                                  std::size_t rows, bool unquantized = false) {
  std::vector<float> y(rows * linear.rows());
  const formats::MatrixView<float> out{y.data(), rows, linear.rows(), linear.rows()};
  if (unquantized) {
    linear.apply_unquantized(rows_of(x, rows), out, 1);
  } else {
    linear.apply(rows_of(x, rows), out, 1);
  }
  return y;
}

}  // namespace ingot::testing
