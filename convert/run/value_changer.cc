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

}  // namespace

void ValueChanger::hold(std::uint64_t matrix) {
  matrix_ = matrix;
  held_.clear();
  for (const ValueChange& change : changes_) {
    if (change.matrix != matrix) continue;
    Held& held =
        held_.emplace_back(Held{.change = &change, .numbers = {}, .lengths = {}, .squares = {}});
    held.numbers.rows = change.rows;
    held.numbers.cols = change.cols;
    if (const auto& pair = change.low_rank) {
      held.numbers.rank = pair->rank;
      held.numbers.factor = pair->factor;
      if (pair->left) held.numbers.left = pair->left->read(0, change.rows.n, pair->rank);
      held.numbers.right = pair->right.read(0, pair->rank, change.cols.n);
    }
    if (change.lengths) held.lengths = change.lengths->read(0, change.rows.n, 1);
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
    if (held.lengths.empty()) continue;
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
  }
}

// A row of zeros has no direction that could be scaled.
void ValueChanger::end_of_rows() {
  for (Held& held : held_) {
    std::vector<double>& factors = held.numbers.row_factors;
    for (std::size_t row = 0; row < held.squares.size(); ++row) {
      const double length = std::sqrt(held.squares[row]);
      factors.push_back(length > 0 ? static_cast<double>(held.lengths[row]) / length : 1);
    }
    held.squares.clear();
  }
}

void ValueChanger::apply(std::uint64_t row, std::uint64_t col, MatrixView<float> values) {
  const quantize::WideRows run = widened(row, col, values);
  for (const Held& held : held_) {
    quantize::add_change(held.numbers, run);
    quantize::scale_rows(held.numbers, run);
  }
  if (quantize::narrow(run.values, values)) return;
  throw Error(
      ErrorCode::kNonFinite,
      "would hold infinite values in rows {} to {}: the change that is added to them is too "
      "large for FP32",
      run.first_row, run.first_row + values.rows - 1);
}

}  // namespace ingot::convert
