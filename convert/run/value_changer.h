#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "convert/plan/band.h"
#include "formats/changes/value_change.h"
#include "formats/container/tensor.h"
#include "quantize/changes/changed_rows.h"

namespace ingot::convert {

/// Changes the decoded values of one tensor, band by band (Plan::changes). The steps are those of
/// formats::ValueChange, and every value has one rounding to FP32, whatever the bands and tiles
/// are. Bands hold whole rows of one matrix; the numbers of a matrix are held while it is at hand.
/// At most one change scales a row or a column.
class ValueChanger {
 public:
  /// `changes` are of this tensor, and must outlive the changer. `rows`: of a matrix of it.
  ValueChanger(std::span<const formats::ValueChange> changes, std::uint64_t rows)
      : changes_(changes), rows_(rows) {}

  /// Reads the numbers for a band. Throws kNonFinite for numbers that are NaN or infinite.
  void begin(const Band& band);
  /// True if rows are scaled to a length: then see() takes every row of the band, whole and from
  /// its first column to its last, before any is changed.
  [[nodiscard]] bool needs_lengths() const { return needs_lengths_; }
  /// True if columns are, and those of the matrix are not known yet: then see() takes all rows of
  /// the matrix in their order, band by band with begin() for each, before any is changed.
  [[nodiscard]] bool needs_matrix() const { return needs_matrix_; }
  void see(std::uint64_t row, std::uint64_t col, formats::MatrixView<const float> values);
  /// All rows of the band were seen: their lengths are known.
  void end_of_rows();
  /// All rows of the matrix were seen.
  void end_of_matrix();
  /// Changes values that begin at this row and column of the band. Throws kNonFinite for a finite
  /// value that becomes infinite.
  void apply(std::uint64_t row, std::uint64_t col, formats::MatrixView<float> values);

 private:
  /// The numbers of a change of the matrix at hand.
  struct Held {
    const formats::ValueChange* change;
    quantize::RowsChange numbers = {};
    std::vector<float> lengths = {};
    std::vector<double> squares = {};      // of its rows in the band
    std::vector<double> col_squares = {};  // of its columns, until all rows were seen
  };
  void hold(std::uint64_t matrix);
  [[nodiscard]] quantize::WideRows widened(std::uint64_t row, std::uint64_t col,
                                           formats::MatrixView<const float> values);

  std::span<const formats::ValueChange> changes_;
  std::uint64_t rows_;
  std::uint64_t first_row_ = 0;          // of the band, within its matrix
  std::optional<std::uint64_t> matrix_;  // at hand
  std::vector<Held> held_;               // of that matrix, in their order
  bool needs_lengths_ = false, needs_matrix_ = false;
  std::vector<double> wide_;
};

}  // namespace ingot::convert
