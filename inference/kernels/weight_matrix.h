#pragma once

#include <cstddef>
#include <cstdint>

#include "formats/storage/encoding.h"

namespace ingot::inference {

/// A matrix [rows, cols] in memory as its scheme stores it, or a run of rows of one. The value of a
/// code is code x scale with one FP32 rounding, exactly as quantize's decode has it.
struct WeightMatrix {
  formats::SchemeId scheme = formats::SchemeId::kF32;
  std::size_t rows = 0;
  std::size_t cols = 0;
  const std::byte* codes = nullptr;
  std::size_t row_bytes = 0;  ///< bytes from row to row

  /// For schemes with scales: element (r, c) belongs to group ((first_row + r) / block_rows,
  /// (first_col + c) / block_cols) of a grid with `scale_cols` columns. first_col is a multiple of
  /// 16, and of block_cols where that is below 128.
  std::size_t block_rows = 0, block_cols = 0;
  std::size_t first_row = 0, first_col = 0;
  std::size_t scale_cols = 0;
  /// The scale of a group: `scales[group]`, or, where scales are held as stored bytes (NVFP4, MX),
  /// `scale_values[scale_codes[group]]` of a table of 256 effective scales.
  const float* scales = nullptr;
  const std::uint8_t* scale_codes = nullptr;
  const float* scale_values = nullptr;
  /// INT4: the code of zero per group, in the places of `scales`; null: 8 in all of them.
  const std::uint8_t* zeros = nullptr;
  /// INT4: the grid column of column first_col + c of the row that this is a part of; null: groups
  /// are runs of columns.
  const std::uint32_t* group_order = nullptr;

  /// Rows [first, first + n).
  [[nodiscard]] WeightMatrix row_range(std::size_t first, std::size_t n) const {
    WeightMatrix part = *this;
    part.rows = n;
    part.first_row += first;
    part.codes += first * row_bytes;
    return part;
  }
};

/// Views a plain FP32 matrix as a WeightMatrix.
inline WeightMatrix f32_matrix(const float* values, std::size_t rows, std::size_t cols,
                               std::size_t stride) {
  return {.scheme = formats::SchemeId::kF32,
          .rows = rows,
          .cols = cols,
          .codes = reinterpret_cast<const std::byte*>(values),
          .row_bytes = stride * sizeof(float)};
}

}  // namespace ingot::inference
