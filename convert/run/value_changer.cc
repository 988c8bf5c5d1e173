#include "convert/run/value_changer.h"

#include <algorithm>
#include <cmath>

#include "formats/base/error.h"

namespace ingot::convert {

using formats::MatrixView;
using formats::ValueChange;
using formats::Window;

namespace {

// Rows of a window before row `place` of its side.
std::uint64_t members_before(const Window& window, std::uint64_t place) {
  if (place <= window.first) return 0;
  return std::min(window.n, (place - window.first + window.step - 1) / window.step);
}

// Factors that give rows or columns of these squares the given lengths. One of zeros has no
// direction that could be scaled.
std::vector<double> factors_of(const std::vector<double>& squares,
                               const std::vector<float>& lengths) {
  std::vector<double> factors;
  factors.reserve(squares.size());
  for (std::size_t i = 0; i < squares.size(); ++i) {
    const double length = std::sqrt(squares[i]);
    factors.push_back(length > 0 ? static_cast<double>(lengths[i]) / length : 1);
  }
  return factors;
}

}  // namespace

void ValueChanger::hold(std::uint64_t matrix) {
  matrix_ = matrix;
  held_.clear();
  needs_matrix_ = false;
  for (const ValueChange& change : changes_) {
    if (change.matrix != matrix) continue;
    Held& held = held_.emplace_back(Held{.change = &change});
    held.numbers.rows = change.rows;
    held.numbers.cols = change.cols;
    if (const auto& pair = change.low_rank) {
      held.numbers.rank = pair->rank;
      held.numbers.factor = pair->factor;
      if (pair->left) held.numbers.left = pair->left->read(0, change.rows.n, pair->rank);
      held.numbers.right = pair->right.read(0, pair->rank, change.cols.n);
    }
    if (!change.lengths) continue;
    const bool is_of_cols = change.lengths_are_of_cols;
    held.lengths = change.lengths->read(0, is_of_cols ? change.cols.n : change.rows.n, 1);
    if (is_of_cols) held.col_squares.assign(change.cols.n, 0);
    needs_matrix_ = needs_matrix_ || is_of_cols;
  }
}

void ValueChanger::begin(const Band& band) {
  const std::uint64_t matrix = band.first_row / rows_;
  first_row_ = band.first_row % rows_;
  if (matrix_ != matrix) hold(matrix);
  needs_lengths_ = false;
  for (Held& held : held_) {
    const Window& rows = held.change->rows;
    const std::uint64_t begin = members_before(rows, first_row_);
    const std::uint64_t end = members_before(rows, first_row_ + band.rows);
    if (begin == end) continue;
    if (const auto& values = held.change->values) {
      held.numbers.first_value_row = begin;
      held.numbers.values = values->read(begin, end - begin, held.change->cols.n);
    }
    if (held.lengths.empty() || held.change->lengths_are_of_cols) continue;
    needs_lengths_ = true;
    held.numbers.row_factors.clear();
    held.squares.assign(rows.n, 0);
  }
}

quantize::WideRows ValueChanger::widened(std::uint64_t row, std::uint64_t col,
                                         MatrixView<const float> values) {
  wide_.resize(std::max(wide_.size(), values.rows * values.cols));
  const MatrixView<double> wide{
      .data = wide_.data(), .rows = values.rows, .cols = values.cols, .stride = values.cols};
  quantize::widen(values, wide);
  return {.first_row = first_row_ + row, .first_col = col, .values = wide};
}

void ValueChanger::see(std::uint64_t row, std::uint64_t col, MatrixView<const float> values) {
  const quantize::WideRows run = widened(row, col, values);
  for (Held& held : held_) {
    quantize::add_change(held.numbers, run);
    if (!held.squares.empty()) quantize::add_squares(held.numbers, run, held.squares);
    if (!held.col_squares.empty()) quantize::add_col_squares(held.numbers, run, held.col_squares);
  }
}

void ValueChanger::end_of_rows() {
  for (Held& held : held_) {
    if (!held.squares.empty()) held.numbers.row_factors = factors_of(held.squares, held.lengths);
    held.squares.clear();
  }
}

void ValueChanger::end_of_matrix() {
  for (Held& held : held_) {
    if (held.col_squares.empty()) continue;
    held.numbers.col_factors = factors_of(held.col_squares, held.lengths);
    held.col_squares.clear();
  }
  needs_matrix_ = false;
}

void ValueChanger::apply(std::uint64_t row, std::uint64_t col, MatrixView<float> values) {
  const quantize::WideRows run = widened(row, col, values);
  for (const Held& held : held_) {
    quantize::add_change(held.numbers, run);
    quantize::scale_run(held.numbers, run);
  }
  if (quantize::narrow(run.values, values)) return;
  throw Error(
      ErrorCode::kNonFinite,
      "would hold infinite values in rows {} to {}: the change that is added to them is too "
      "large for FP32",
      run.first_row, run.first_row + values.rows - 1);
}

}  // namespace ingot::convert
