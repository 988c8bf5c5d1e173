#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/storage/encoding.h"

namespace ingot::quantize {

/// The zero point of INT4 codes without one.
inline constexpr std::uint8_t kInt4Zero = 8;

/// A matrix in memory as its scheme stores it, or some rows and columns of one, which are its run.
/// Leading dimensions are flattened: row r of a stacked [E, N, K] tensor belongs to matrix r / N.
/// The value of a code is code x scale with one FP32 rounding (kernels/codes.h).
struct CodedMatrix {
  formats::SchemeId scheme = formats::SchemeId::kF32;
  const std::byte* codes = nullptr;  ///< first code of the run
  std::size_t rows = 0;
  std::size_t cols = 0;         ///< columns of the run, which fill whole bytes
  std::size_t row_bytes = 0;    ///< bytes from row to row
  std::uint64_t first_row = 0;  ///< first row of the run in the flattened tensor
  std::uint64_t first_col = 0;
  // Groups that share a scale (schemes with scales): block_rows x block_cols of a matrix each. The
  // scales, by which codes are multiplied, are row-major from scale row `first_scale_row` of
  // [matrices x scale rows of one, scale_cols] on: as numbers, or as stored bytes, each of which is
  // the place of a number in a table of 256.
  std::span<const float> scales{};
  const std::uint8_t* scale_codes = nullptr;
  const float* scale_values = nullptr;
  std::uint64_t first_scale_row = 0;
  std::uint64_t rows_per_matrix = 0;  ///< N of a stack of matrices; 0: one matrix
  std::uint64_t scale_cols = 0;       ///< ceil(K / block_cols)
  std::uint64_t block_rows = 0;
  std::uint64_t block_cols = 0;
  /// Integers: the code that means zero in each group; empty: 8 in all of them, of INT4.
  std::span<const std::uint8_t> zeros{};
  /// Integers: the scale column of each column of the whole row; empty: groups are runs of columns.
  std::span<const std::uint32_t> group_order{};
  /// Numbers that decode() multiplies the columns of the whole row with; empty: none. Only decode()
  /// knows of them.
  std::span<const float> column_factors{};

  [[nodiscard]] const std::byte* row(std::size_t r) const { return codes + r * row_bytes; }

  /// Some rows and columns of the run.
  [[nodiscard]] CodedMatrix part(std::size_t row, std::size_t n_rows, std::size_t col,
                                 std::size_t n_cols) const {
    CodedMatrix part = *this;
    part.codes += row * row_bytes + col * formats::scheme_facts(scheme).code_bits / 8;
    part.rows = n_rows;
    part.cols = n_cols;
    part.first_row += row;
    part.first_col += col;
    return part;
  }
  [[nodiscard]] CodedMatrix row_range(std::size_t first, std::size_t n) const {
    return part(first, n, 0, cols);
  }

  /// Number of the first scale of row `r` of the run, from the tensor's first column on.
  [[nodiscard]] std::size_t first_group(std::size_t r) const {
    const std::uint64_t row = first_row + r;
    const std::uint64_t scale_row =
        row < rows_per_matrix || rows_per_matrix == 0
            ? row / block_rows
            : row / rows_per_matrix * ceil_div(rows_per_matrix, block_rows) +
                  row % rows_per_matrix / block_rows;
    return static_cast<std::size_t>((scale_row - first_scale_row) * scale_cols);
  }
  /// The scale column of column `c` of the run, if groups are runs of columns.
  [[nodiscard]] std::size_t block_of_col(std::size_t c) const {
    return static_cast<std::size_t>((first_col + c) / block_cols);
  }
  /// Number of the group of an element.
  [[nodiscard]] std::size_t group(std::size_t r, std::size_t c) const {
    return first_group(r) + (group_order.empty() ? block_of_col(c) : group_order[first_col + c]);
  }
  [[nodiscard]] float scale(std::size_t group) const {
    return scale_codes == nullptr ? scales[group] : scale_values[scale_codes[group]];
  }
  [[nodiscard]] std::uint8_t zero(std::size_t group) const {
    return zeros.empty() ? kInt4Zero : zeros[group];
  }

  /// The first row after `r` of the run that has other scales (or the end of the run).
  [[nodiscard]] std::size_t panel_end(std::size_t r) const {
    const std::uint64_t in_matrix = rows_per_matrix == 0 ? ~std::uint64_t{0} : rows_per_matrix;
    const std::uint64_t row = (first_row + r) % in_matrix;
    const std::uint64_t left = std::min(block_rows - row % block_rows, in_matrix - row);
    return left < rows - r ? r + static_cast<std::size_t>(left) : rows;
  }
  /// The first column after `c` of the run that has another scale (or the end of the run).
  [[nodiscard]] std::size_t group_end(std::size_t c) const {
    const std::uint64_t left = block_cols - (first_col + c) % block_cols;
    return left < cols - c ? c + static_cast<std::size_t>(left) : cols;
  }
  /// group_end of a column with which a group begins.
  [[nodiscard]] std::size_t whole_group_end(std::size_t c) const {
    return block_cols < cols - c ? c + static_cast<std::size_t>(block_cols) : cols;
  }
};

/// Checks that the scales cover the run, which is not empty; failing that is a bug of the caller.
inline void check_scales(const CodedMatrix& m) {
  INGOT_CHECK(m.rows > 0 && m.cols > 0);
  INGOT_CHECK(m.block_rows > 0 && m.block_cols > 0);
  INGOT_CHECK(m.block_of_col(m.cols - 1) < m.scale_cols);
  INGOT_CHECK(m.zeros.empty() || m.zeros.size() == m.scales.size());
  INGOT_CHECK(m.group_order.empty() || (m.first_col <= m.group_order.size() &&
                                        m.group_order.size() - m.first_col >= m.cols));
  INGOT_CHECK(m.column_factors.empty() || (m.first_col <= m.column_factors.size() &&
                                           m.column_factors.size() - m.first_col >= m.cols));
  if (m.scale_codes != nullptr) {
    INGOT_CHECK(m.scale_values != nullptr);
    return;
  }
  // A number below that of the first scale would be huge.
  INGOT_CHECK(m.first_group(0) <= m.first_group(m.rows - 1));
  INGOT_CHECK(m.first_group(m.rows - 1) / m.scale_cols < m.scales.size() / m.scale_cols);
}

/// Checks that a matrix can be decoded; failing that is a bug of the caller.
inline void check_codes(const CodedMatrix& m) {
  INGOT_CHECK(m.scheme != formats::SchemeId::kRaw);
  if (m.rows == 0 || m.cols == 0) return;
  const std::size_t bits = m.cols * formats::scheme_facts(m.scheme).code_bits;
  INGOT_CHECK(m.codes != nullptr && bits % 8 == 0 && (m.rows == 1 || m.row_bytes >= bits / 8));
  if (formats::is_coded(m.scheme)) check_scales(m);
}

/// Calls visit(row, first column, end, group) for every piece of a row of the run that lies in one
/// group, in row-major order, if groups are runs of columns.
template <typename Visit>
void for_each_piece(const CodedMatrix& m, const Visit& visit) {
  if (m.rows == 0 || m.cols == 0) return;
  check_scales(m);
  for (std::size_t r = 0; r < m.rows; ++r) {
    std::size_t group = m.first_group(r) + m.block_of_col(0);
    for (std::size_t c = 0, end = m.group_end(0); c < m.cols; ++group) {
      visit(r, c, end, group);
      c = std::exchange(end, m.whole_group_end(end));
    }
  }
}

}  // namespace ingot::quantize
