#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "quantize/scheme.h"

namespace ingot::quantize {

/// Codes from one row of a run to the next.
inline std::size_t code_stride(const EncodedRows& in) {
  return in.stride == 0 ? in.cols : in.stride;
}

/// Finds the scales of a run: which row of the scale matrix holds for which rows, and which column
/// for which columns.
class BlockGrid {
 public:
  /// Checks that the scales cover the run, which is not empty; failing that is a bug of the caller.
  explicit BlockGrid(const EncodedRows& in) : in_(in) {
    INGOT_CHECK(in.rows > 0 && in.cols > 0);
    INGOT_CHECK(in.block_rows > 0 && in.block_cols > 0 && in.rows_per_matrix > 0);
    scale_rows_per_matrix_ = ceil_div(in.rows_per_matrix, in.block_rows);
    INGOT_CHECK((in.first_col + in.cols - 1) / in.block_cols < in.scale_cols);
    INGOT_CHECK(scale_row(0) >= in.first_scale_row);
    INGOT_CHECK(scale_row(in.rows - 1) - in.first_scale_row < in.scales.size() / in.scale_cols);
  }

  /// Scales of the block row that holds row `r` of the run, from the tensor's first column on.
  [[nodiscard]] const float* scales_of_row(std::size_t r) const {
    return in_.scales.data() + (scale_row(r) - in_.first_scale_row) * in_.scale_cols;
  }

  /// The first row after `r` of the run that has other scales (or the end of the run).
  [[nodiscard]] std::size_t panel_end(std::size_t r) const {
    const std::uint64_t row = (in_.first_row + r) % in_.rows_per_matrix;
    const std::uint64_t left =
        std::min(in_.block_rows - row % in_.block_rows, in_.rows_per_matrix - row);
    return left < in_.rows - r ? r + static_cast<std::size_t>(left) : in_.rows;
  }

  /// Index into scales_of_row for column `c` of the run.
  [[nodiscard]] std::size_t block_of_col(std::size_t c) const {
    return static_cast<std::size_t>((in_.first_col + c) / in_.block_cols);
  }

  /// The first column after `c` of the run that has another scale (or the end of the run).
  [[nodiscard]] std::size_t block_end(std::size_t c) const {
    const std::uint64_t left = in_.block_cols - (in_.first_col + c) % in_.block_cols;
    return left < in_.cols - c ? c + static_cast<std::size_t>(left) : in_.cols;
  }

 private:
  [[nodiscard]] std::size_t scale_row(std::size_t r) const {
    const std::uint64_t row = in_.first_row + r;
    return static_cast<std::size_t>(row / in_.rows_per_matrix * scale_rows_per_matrix_ +
                                    row % in_.rows_per_matrix / in_.block_rows);
  }

  const EncodedRows& in_;
  std::uint64_t scale_rows_per_matrix_ = 0;
};

/// Calls visit(row, first column, end, scale) for every piece of a row of the run that lies in one
/// group, in row-major order.
template <typename Visit>
void for_each_piece(const EncodedRows& in, const Visit& visit) {
  if (in.rows == 0 || in.cols == 0) return;
  const BlockGrid grid(in);
  for (std::size_t r = 0; r < in.rows; ++r) {
    const float* scales = grid.scales_of_row(r) + grid.block_of_col(0);
    for (std::size_t c = 0, end = grid.block_end(0); c < in.cols;) {
      visit(r, c, end, *scales++);
      c = end;
      end = in.block_cols < in.cols - c ? c + static_cast<std::size_t>(in.block_cols) : in.cols;
    }
  }
}

/// Calls visit(row, first column, end, group) for every piece of a row that lies in one group, in
/// row-major order. Groups are numbered row-major; there must be `n_groups` of them.
template <typename Visit>
void for_each_group_piece(formats::MatrixView<const float> values, std::uint64_t block_rows,
                          std::uint64_t block_cols, std::size_t n_groups, const Visit& visit) {
  if (values.rows == 0 || values.cols == 0) return;
  INGOT_CHECK(block_rows > 0 && block_cols > 0);
  const auto across = static_cast<std::size_t>(ceil_div(values.cols, block_cols));
  INGOT_CHECK(n_groups / across >= ceil_div(values.rows, block_rows));
  for (std::size_t r = 0; r < values.rows; ++r) {
    std::size_t group = static_cast<std::size_t>(r / block_rows) * across;
    for (std::size_t c = 0; c < values.cols; ++group) {
      const std::size_t end =
          block_cols < values.cols - c ? c + static_cast<std::size_t>(block_cols) : values.cols;
      visit(r, c, end, group);
      c = end;
    }
  }
}

}  // namespace ingot::quantize
