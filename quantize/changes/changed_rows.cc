#include "quantize/changes/changed_rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "quantize/changes/low_rank.h"

namespace ingot::quantize {

using formats::MatrixView;
using formats::Window;

namespace {

// The members of a window from `first` on, `n` of the side: their numbers within the window.
struct Members {
  std::uint64_t begin = 0, end = 0;
};

Members members_in(const Window& window, std::uint64_t first, std::uint64_t n) {
  const auto before = [&](std::uint64_t place) {
    if (place <= window.first) return std::uint64_t{0};
    return std::min(window.n, (place - window.first + window.step - 1) / window.step);
  };
  return {.begin = before(first), .end = before(first + n)};
}

// Calls visit(row of the run, row of the change) for every row of both.
template <typename Visit>
void for_each_row(const RowsChange& change, const WideRows& run, const Visit& visit) {
  const Members rows = members_in(change.rows, run.first_row, run.values.rows);
  for (std::uint64_t r = rows.begin; r < rows.end; ++r)
    visit(change.rows.first + r * change.rows.step - run.first_row, r);
}

// Calls visit(value, column of the change) for every value of both, row by row.
template <typename Visit>
void for_each_value(const RowsChange& change, const WideRows& run, const Visit& visit) {
  const Members cols = members_in(change.cols, run.first_col, run.values.cols);
  for_each_row(change, run, [&](std::uint64_t at, std::uint64_t /*row*/) {
    double* const values = run.values.row(at);
    for (std::uint64_t c = cols.begin; c < cols.end; ++c)
      visit(values[change.cols.first + c * change.cols.step - run.first_col], c);
  });
}

// Adds the low-rank product to some columns of a run: those of the change from `cols.begin` on.
class LowRankAdder {
 public:
  LowRankAdder(const RowsChange& change, const WideRows& run, const Members& cols)
      : change_(change),
        run_(run),
        first_(change.cols.first + cols.begin * change.cols.step - run.first_col),
        n_(cols.end - cols.begin),
        ones_(change.left.empty() ? change.rank : 0, 1.0F) {
    rows_.right = change.right.data() + cols.begin;
    rows_.right_stride = change.cols.n;
    rows_.rank = change.rank;
    rows_.n = n_;
    rows_.factor = change.factor;
    if (change.cols.step != 1) apart_.resize(n_ * kLowRankRows);
  }

  void add(std::uint64_t run_row, std::uint64_t change_row) {
    at_[rows_.n_rows] = run_.values.row(run_row) + first_;
    rows_.left[rows_.n_rows] =
        ones_.empty() ? change_.left.data() + change_row * change_.rank : ones_.data();
    rows_.out[rows_.n_rows] =
        apart_.empty() ? at_[rows_.n_rows] : apart_.data() + rows_.n_rows * n_;
    if (++rows_.n_rows == kLowRankRows) flush();
  }

  void flush() {
    if (rows_.n_rows == 0) return;
    const std::uint64_t step = change_.cols.step;
    for (std::size_t r = 0; r < rows_.n_rows && !apart_.empty(); ++r) {
      for (std::uint64_t c = 0; c < n_; ++c) rows_.out[r][c] = at_[r][c * step];
    }
    add_low_rank(rows_);
    for (std::size_t r = 0; r < rows_.n_rows && !apart_.empty(); ++r) {
      for (std::uint64_t c = 0; c < n_; ++c) at_[r][c * step] = rows_.out[r][c];
    }
    rows_.n_rows = 0;
  }

 private:
  const RowsChange& change_;
  const WideRows& run_;
  std::uint64_t first_, n_;
  std::vector<float> ones_;
  LowRankRows rows_;
  std::array<double*, kLowRankRows> at_{};
  std::vector<double> apart_;  // columns that are not neighbours, next to each other
};

}  // namespace

void widen(MatrixView<const float> values, MatrixView<double> out) {
  for (std::size_t r = 0; r < values.rows; ++r) std::copy_n(values.row(r), values.cols, out.row(r));
}

void add_change(const RowsChange& change, const WideRows& run) {
  const Members cols = members_in(change.cols, run.first_col, run.values.cols);
  if (cols.begin == cols.end) return;
  const std::uint64_t first = change.cols.first + cols.begin * change.cols.step - run.first_col;
  if (!change.values.empty()) {
    for_each_row(change, run, [&](std::uint64_t at, std::uint64_t row) {
      const float* const values =
          change.values.data() + (row - change.first_value_row) * change.cols.n;
      double* const out = run.values.row(at) + first;
      for (std::uint64_t c = cols.begin; c < cols.end; ++c)
        out[(c - cols.begin) * change.cols.step] = values[c];
    });
  }
  if (change.right.empty()) return;
  LowRankAdder adder(change, run, cols);
  for_each_row(change, run, [&](std::uint64_t at, std::uint64_t row) { adder.add(at, row); });
  adder.flush();
}

void scale_run(const RowsChange& change, const WideRows& run) {
  if (!change.row_factors.empty()) {
    for_each_row(change, run, [&](std::uint64_t at, std::uint64_t row) {
      double* const values = run.values.row(at);
      const double factor = change.row_factors[row];
      for (std::size_t c = 0; c < run.values.cols; ++c) values[c] *= factor;
    });
  }
  if (change.col_factors.empty()) return;
  for_each_value(change, run,
                 [&](double& value, std::uint64_t c) { value *= change.col_factors[c]; });
}

void add_squares(const RowsChange& change, const WideRows& run, std::span<double> squares) {
  for_each_row(change, run, [&](std::uint64_t at, std::uint64_t row) {
    const double* const values = run.values.row(at);
    double sum = squares[row];
    for (std::size_t c = 0; c < run.values.cols; ++c) sum += values[c] * values[c];
    squares[row] = sum;
  });
}

void add_col_squares(const RowsChange& change, const WideRows& run, std::span<double> squares) {
  for_each_value(change, run, [&](double value, std::uint64_t c) { squares[c] += value * value; });
}

bool narrow(MatrixView<const double> values, MatrixView<float> out) {
  bool is_held = true;
  for (std::size_t r = 0; r < values.rows; ++r) {
    const double* const from = values.row(r);
    float* const to = out.row(r);
    bool is_row_held = true;
    for (std::size_t c = 0; c < values.cols; ++c) {
      const float was = to[c];
      to[c] = static_cast<float>(from[c]);
      is_row_held = is_row_held && (std::isfinite(to[c]) || !std::isfinite(was));
    }
    is_held = is_held && is_row_held;
  }
  return is_held;
}

double ChangeSums::survival() const {
  return wanted2 > 0 ? product / wanted2 : 1;
}

double ChangeSums::relative_change() const {
  return before2 > 0 ? std::sqrt(wanted2 / before2) : 0;
}

double ChangeSums::cosine() const {
  if (wanted2 == 0 && made2 == 0) return 1;
  return wanted2 > 0 && made2 > 0 ? product / std::sqrt(wanted2) / std::sqrt(made2) : 0;
}

ChangeSums measure_change(MatrixView<const float> before, MatrixView<const float> wanted,
                          MatrixView<const float> decoded) {
  constexpr std::size_t kLanes = 8;
  std::array<std::array<double, kLanes>, 4> sums{};
  for (std::size_t r = 0; r < before.rows; ++r) {
    const float *was = before.row(r), *is = wanted.row(r), *shown = decoded.row(r);
    for (std::size_t c = 0; c < before.cols; ++c) {
      const double value = was[c], change = is[c] - value, made = shown[c] - value;
      const bool is_finite = std::isfinite(change) && std::isfinite(made);
      const std::size_t lane = c % kLanes;
      sums[0][lane] += is_finite ? change * change : 0;
      sums[1][lane] += is_finite ? made * made : 0;
      sums[2][lane] += is_finite ? change * made : 0;
      sums[3][lane] += is_finite ? value * value : 0;
    }
  }
  const auto folded = [](const std::array<double, kLanes>& lanes) {
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
           ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
  };
  return {.wanted2 = folded(sums[0]),
          .made2 = folded(sums[1]),
          .product = folded(sums[2]),
          .before2 = folded(sums[3])};
}

}  // namespace ingot::quantize
