#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "formats/container/tensor.h"
#include "formats/records/slicing_record.h"

namespace ingot::shard {

/// How a whole stored tensor was cut: the same for all its slices.
struct SliceForm {
  formats::DType dtype{};
  formats::Shape whole;  ///< as it was cut (retiled, padded)
  int axis = -1;         ///< dimension that is cut, or -1
  std::uint32_t n = 1;   ///< slices along it
  std::uint32_t sections = 1;
  formats::Shape original;  ///< before retiling or padding; empty: `whole`
  std::array<std::uint64_t, 2> repeat = {1, 1};

  /// The shape of the tensor that the slices give when they are joined.
  [[nodiscard]] const formats::Shape& shape() const { return original.empty() ? whole : original; }
  bool operator==(const SliceForm&) const = default;
};

/// A stored tensor of one file as part of a whole.
struct PlacedSlice {
  SliceForm form;
  std::uint32_t slice = 0;             ///< 0 .. n-1 along the axis
  std::vector<std::uint32_t> experts;  ///< of a stack, ascending; empty: all
  bool is_zeroed = false;
};

/// Finds the place of a stored tensor from its record; null: it is a whole of its own. Throws
/// kMismatch when the record contradicts itself or the tensor that is here, kLimit for a whole
/// whose size does not fit 64 bits.
PlacedSlice place_slice(formats::DType dtype, const formats::Shape& stored,
                        const formats::SliceRecord* record);

/// Where the elements of a tensor stand in the whole that was made of it by padding or retiling.
/// Both are seen as [matrices, rows, cols].
struct FittedGrid {
  std::uint64_t element_bytes = 1;
  std::uint64_t rows = 1, cols = 1;              ///< of a matrix of the original
  std::uint64_t whole_rows = 1, whole_cols = 1;  ///< of the whole
  std::uint64_t row_sections = 1, col_sections = 1;
  std::array<std::uint64_t, 2> repeat = {1, 1};

  [[nodiscard]] std::uint64_t row_bytes() const { return cols * element_bytes; }
  [[nodiscard]] std::uint64_t whole_row_bytes() const { return whole_cols * element_bytes; }
  /// Row of the whole, counted over all matrices, for such a row of the original.
  [[nodiscard]] std::uint64_t whole_row(std::uint64_t row) const;
  [[nodiscard]] std::uint64_t whole_col(std::uint64_t col) const;
  /// Rows of the original from `row` to the end of its section.
  [[nodiscard]] std::uint64_t rows_left(std::uint64_t row) const;
  /// Rows are the same bytes in both, padding at their ends apart.
  [[nodiscard]] bool keeps_rows() const { return repeat[1] == 1 && col_sections == 1; }
};

/// Nothing for forms that were neither padded nor retiled.
std::optional<FittedGrid> fitted_grid(const SliceForm& form);

}  // namespace ingot::shard
