#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "formats/container/tensor.h"
#include "formats/places/window.h"

// The arithmetic of changes of decoded values (formats/changes/value_change.h): numbers to numbers.
// A run of FP32 values is widened to double, changed, and rounded to FP32 once, to nearest even.

namespace ingot::quantize {

/// The numbers of a change at hand. Rows and columns are those of the matrix that is changed.
struct RowsChange {
  formats::Window rows, cols;
  std::uint64_t first_value_row = 0;  ///< row of the change that `values` begin with
  std::vector<float> values;          ///< [any rows, cols.n]; empty: none take their place
  std::vector<float> left;            ///< [rows.n, rank]; empty: all ones
  std::vector<float> right;           ///< [rank, cols.n]; empty: nothing is added
  std::uint64_t rank = 0;
  double factor = 1;
  std::vector<double> row_factors;  ///< [rows.n]: each row is multiplied with; empty: none is
  std::vector<double> col_factors;  ///< [cols.n]: each column is; empty: none is
};

/// A run of FP64 values: rows and columns of a matrix, from these on.
struct WideRows {
  std::uint64_t first_row = 0, first_col = 0;
  formats::MatrixView<double> values;
};

/// Widens FP32 values of the same shape.
void widen(formats::MatrixView<const float> values, formats::MatrixView<double> out);
/// Makes a change of a run, without its factors. Roundings: changes/low_rank.h.
void add_change(const RowsChange& change, const WideRows& run);
/// Multiplies the rows, and the columns, of a run that a change covers with its factors, with a
/// rounding each.
void scale_run(const RowsChange& change, const WideRows& run);
/// Adds the squares of each row of a run that a change covers to `squares`, [rows.n], in the order
/// of columns: the same sums for runs of any width, from the first column to the last.
void add_squares(const RowsChange& change, const WideRows& run, std::span<double> squares);
/// Likewise of each column, [cols.n], in the order of rows.
void add_col_squares(const RowsChange& change, const WideRows& run, std::span<double> squares);
/// Rounds to FP32. Returns false where a finite value became infinite or NaN.
bool narrow(formats::MatrixView<const double> values, formats::MatrixView<float> out);

/// How much of a change the values of an output show, as sums over all values of a tensor that are
/// finite before and after. Each run adds its sums, of eight lanes by column.
struct ChangeSums {
  double wanted2 = 0;  ///< sum of (wanted - before)^2
  double made2 = 0;    ///< sum of (decoded - before)^2
  double product = 0;  ///< sum of (wanted - before) x (decoded - before)
  double before2 = 0;  ///< sum of before^2

  static auto fields(auto& of) { return std::tie(of.wanted2, of.made2, of.product, of.before2); }
  /// The share of the wanted change that is left: its projection on the wanted direction; 1 where
  /// no change was wanted.
  [[nodiscard]] double survival() const;
  /// The wanted change against the values before it; 0 where these are all zero.
  [[nodiscard]] double relative_change() const;
  /// The cosine of the angle between both changes; 1 where both are zero.
  [[nodiscard]] double cosine() const;

  friend bool operator==(const ChangeSums&, const ChangeSums&) = default;
};

/// Measures a run.
ChangeSums measure_change(formats::MatrixView<const float> before,
                          formats::MatrixView<const float> wanted,
                          formats::MatrixView<const float> decoded);

}  // namespace ingot::quantize
