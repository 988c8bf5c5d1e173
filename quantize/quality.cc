#include "quantize/quality.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "formats/base/error.h"
#include "quantize/kernels/quality_row.h"

namespace ingot::quantize {
namespace {

using MeasureRow = void (*)(const float*, const float*, std::size_t, std::size_t, const float*,
                            std::uint8_t*, QualitySums&);

// Values whose nearest code is the largest one may lie half a step away, and a rounding more.
constexpr float kBeyondHalf = 1 + 0x1p-10F;

/// Rows that share scales, and facts about their columns, as many at a time as share a scale and a
/// unit.
class Panel {
 public:
  Panel(const QualityRun& run, std::size_t block_cols)
      : run_(run),
        step_(block_cols == run.values.cols ? kQualityUnit
                                            : std::min(kQualityUnit, block_cols & -block_cols)),
        steps_((block_cols + step_ - 1) / step_),
        thresholds_((run.values.cols + step_ - 1) / step_, std::numeric_limits<float>::infinity()),
        inexact_(thresholds_.size()) {}

  /// Begins the panel whose scales begin at group `first_group`.
  void begin(std::size_t first_group) {
    std::fill(inexact_.begin(), inexact_.end(), std::uint8_t{0});
    const bool can_saturate = run_.half_top_step > 0 && !run_.scales.empty();
    if (!can_saturate) return;
    const float* scales = run_.scales.data() + first_group;
    const float factor = kBeyondHalf * run_.half_top_step;
    for_each_group([&](std::size_t group, std::size_t first, auto steps) {
      for (std::size_t i = 0; i < steps; ++i)
        thresholds_[first + i] = factor * std::fabs(scales[group]);
    });
  }

  void measure(std::size_t row, MeasureRow measure_row, QualitySums& sums) {
    measure_row(run_.values.row(row), run_.decoded.row(row), run_.values.cols, step_,
                thresholds_.data(), inexact_.data(), sums);
  }

  /// Counts the groups of the panel.
  void end(QualitySums& sums) const {
    std::size_t n = 0, exact = 0;
    for_each_group([&](std::size_t /*group*/, std::size_t first, auto steps) {
      unsigned any = 0;
      for (std::size_t i = 0; i < steps; ++i) any |= inexact_[first + i];
      ++n;
      exact += any == 0 ? 1U : 0U;
    });
    sums.blocks += n;
    sums.exact_blocks += exact;
  }

 private:
  /// Calls body(group, its first step, steps); of one step in a loop that the compiler unrolls.
  template <typename Body>
  void for_each_group(const Body& body) const {
    const std::size_t n = inexact_.size();
    for (std::size_t group = 0; steps_ == 1 && group < n; ++group)
      body(group, group, std::integral_constant<std::size_t, 1>());
    for (std::size_t group = 0, first = 0; steps_ > 1 && first < n; ++group, first += steps_)
      body(group, first, std::min(steps_, n - first));
  }

  const QualityRun& run_;
  std::size_t step_;   // columns
  std::size_t steps_;  // steps of a group
  std::vector<float> thresholds_;
  std::vector<std::uint8_t> inexact_;
};

QualitySums measure(const QualityRun& run, MeasureRow measure_row) {
  const std::size_t rows = run.values.rows;
  const std::size_t cols = run.values.cols;
  INGOT_CHECK(run.decoded.rows == rows && run.decoded.cols == cols);
  QualitySums sums;
  if (rows == 0 || cols == 0) return sums;
  const auto side = [](std::uint64_t block, std::size_t none, std::size_t whole) {
    return block == 0 ? none : static_cast<std::size_t>(std::min<std::uint64_t>(block, whole));
  };
  const std::size_t block_rows = side(run.block_rows, 1, rows);
  const std::size_t block_cols = side(run.block_cols, cols, cols);
  INGOT_CHECK(block_cols == cols || block_cols % kQualityStep == 0);
  const std::size_t across = (cols + block_cols - 1) / block_cols;
  INGOT_CHECK(run.scales.empty() ||
              run.scales.size() / across >= (rows + block_rows - 1) / block_rows);
  Panel panel(run, block_cols);
  for (std::size_t r = 0; r < rows; r += block_rows) {
    panel.begin(r / block_rows * across);
    for (std::size_t i = r; i < std::min(r + block_rows, rows); ++i) {
      panel.measure(i, measure_row, sums);
    }
    panel.end(sums);
  }
  sums.elements = std::uint64_t{rows} * cols;
  return sums;
}

}  // namespace

QualitySums measure_quality(const QualityRun& run) {
  return measure(run, measure_row);
}

QualitySums scalar::measure_quality(const QualityRun& run) {
  return measure(run, scalar::measure_row);
}

void QualitySums::add(const QualitySums& next) {
  add_fields(*this, next);
  max_error = std::max(max_error, next.max_error);
}

double QualitySums::relative_error() const {
  return error2 == 0 ? 0 : std::sqrt(error2 / reference2);
}

double QualitySums::sqnr_db() const {
  if (error2 == 0 && reference2 == 0) return std::numeric_limits<double>::quiet_NaN();
  if (error2 == 0) return std::numeric_limits<double>::infinity();
  return 10 * std::log10(reference2 / error2);
}

double QualitySums::cosine() const {
  // The sum of d^2, from (v - d)^2 = v^2 - 2vd + d^2. Exactly 0 where only zeros were decoded.
  const double decoded2 = error2 - reference2 + 2 * product;
  if (reference2 == 0 && decoded2 <= 0) return 1;
  if (reference2 == 0 || decoded2 <= 0) return 0;
  return std::clamp(product / (std::sqrt(reference2) * std::sqrt(decoded2)), -1.0, 1.0);
}

}  // namespace ingot::quantize
