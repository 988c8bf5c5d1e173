#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "formats/container/tensor.h"

namespace ingot::inference {

using formats::MatrixView;

/// A row-major FP32 matrix: activations, one row per token.
class Matrix {
 public:
  Matrix() = default;
  Matrix(std::size_t rows, std::size_t cols) : rows_(rows), cols_(cols), values_(rows * cols) {}

  [[nodiscard]] std::size_t rows() const { return rows_; }
  [[nodiscard]] std::size_t cols() const { return cols_; }
  [[nodiscard]] std::span<float> values() { return values_; }
  [[nodiscard]] std::span<const float> values() const { return values_; }
  [[nodiscard]] std::span<float> row(std::size_t r) {
    return std::span(values_).subspan(r * cols_, cols_);
  }
  [[nodiscard]] std::span<const float> row(std::size_t r) const {
    return std::span(values_).subspan(r * cols_, cols_);
  }
  [[nodiscard]] MatrixView<float> view() { return {values_.data(), rows_, cols_, cols_}; }
  [[nodiscard]] MatrixView<const float> view() const {
    return {values_.data(), rows_, cols_, cols_};
  }
  /// Views `n_rows` rows from `row` on, and `n_cols` columns of each from `col` on.
  [[nodiscard]] MatrixView<float> block(std::size_t row, std::size_t n_rows, std::size_t col,
                                        std::size_t n_cols) {
    return {values_.data() + row * cols_ + col, n_rows, n_cols, cols_};
  }
  [[nodiscard]] MatrixView<const float> block(std::size_t row, std::size_t n_rows, std::size_t col,
                                              std::size_t n_cols) const {
    return {values_.data() + row * cols_ + col, n_rows, n_cols, cols_};
  }
  /// Views columns [first, first + n) of every row.
  [[nodiscard]] MatrixView<float> columns(std::size_t first, std::size_t n) {
    return block(0, rows_, first, n);
  }
  [[nodiscard]] MatrixView<const float> columns(std::size_t first, std::size_t n) const {
    return block(0, rows_, first, n);
  }

 private:
  std::size_t rows_ = 0, cols_ = 0;
  std::vector<float> values_;
};

}  // namespace ingot::inference
