#pragma once

#include <cstddef>
#include <span>

#include "formats/container/tensor.h"
#include "inference/base/matrix.h"

namespace ingot::inference {

/// Rows of the last tokens of a sequence, in memory of fixed size that the cache keeps: what a
/// sliding window, a convolution or an unfinished window needs of the past. The row of position p
/// stands at p % capacity.
class RecentRows {
 public:
  /// `memory` is a whole number of rows of `width` values, at least one, and outlives this.
  RecentRows(std::span<float> memory, std::size_t width);

  /// Rows of positions [position - n, position), zeros for those before the first, and then `rows`:
  /// [n + rows.rows, width]. n is at most the capacity.
  [[nodiscard]] Matrix followed_by(std::size_t position, std::size_t n,
                                   MatrixView<const float> rows) const;
  /// Keeps the rows of positions [position, position + rows.rows), or the last of them.
  void keep(std::size_t position, MatrixView<const float> rows);

 private:
  std::span<float> memory_;
  std::size_t width_, capacity_;
};

}  // namespace ingot::inference
