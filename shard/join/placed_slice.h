#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "formats/container/dtype.h"
#include "formats/records/slicing_record.h"

namespace ingot::shard {

/// A stored tensor of one file as part of a whole: its record, and what follows from both.
struct PlacedSlice {
  formats::DType dtype{};
  /// Of a tensor without one: all of `whole`. `original` is empty where nothing was changed.
  formats::SliceRecord record;
  std::uint32_t n = 1;      ///< slices along the axis
  std::uint32_t slice = 0;  ///< 0 .. n-1

  /// The shape of the tensor that the slices give when they are joined.
  [[nodiscard]] const formats::Shape& shape() const {
    return record.original.empty() ? record.whole : record.original;
  }
  /// Whether the other can be a slice of the same whole.
  [[nodiscard]] bool is_cut_like(const PlacedSlice& other) const;
};

/// Finds the place of a stored tensor from its record (as parse_slice_record gives it); null: it is
/// a whole of its own. Throws kMismatch when the record contradicts the tensor that is here, kLimit
/// for a whole whose size does not fit 64 bits.
PlacedSlice place_slice(formats::DType dtype, const formats::Shape& stored,
                        const formats::SliceRecord* record);

/// Where the elements of a tensor stand in the whole that was made of it by padding or retiling.
/// Both are seen as [matrices, rows, cols].
struct AlignedGrid {
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
/// Nothing for wholes that were neither padded nor retiled.
std::optional<AlignedGrid> aligned_grid(const PlacedSlice& placed);

}  // namespace ingot::shard
