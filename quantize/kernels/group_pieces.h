#pragma once

#include <cstddef>
#include <cstdint>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/container/tensor.h"

namespace ingot::quantize {

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
