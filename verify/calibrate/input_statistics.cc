#include "verify/calibrate/input_statistics.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/parallel.h"

namespace ingot::verify {
namespace {

// Columns of a row that are in cache while their sums are.
constexpr std::size_t kColumnsAtOnce = 512;

struct Extremes {
  float min = 0, max = 0;
};

Extremes add_columns(formats::MatrixView<const float> x, std::size_t first, std::size_t n,
                     double* sums) {
  Extremes extremes;
  for (std::size_t r = 0; r < x.rows; ++r) {
    const float* row = x.row(r) + first;
    for (std::size_t c = 0; c < n; ++c) {
      sums[c] += double{row[c]} * double{row[c]};
      extremes.min = std::min(extremes.min, row[c]);
      extremes.max = std::max(extremes.max, row[c]);
    }
  }
  return extremes;
}

}  // namespace

void InputSummary::include(const InputSummary& other) {
  INGOT_CHECK(mean_square.size() == other.mean_square.size());
  min = std::min(min, other.min);
  max = std::max(max, other.max);
  for (std::size_t c = 0; c < mean_square.size(); ++c)
    mean_square[c] = std::max(mean_square[c], other.mean_square[c]);
}

void InputStatistics::add(formats::MatrixView<const float> x, std::size_t threads) {
  INGOT_CHECK(x.cols == square_sums_.size());
  std::vector<Extremes> extremes((x.cols + kColumnsAtOnce - 1) / kColumnsAtOnce);
  parallel_for(extremes.size(), threads, [&](std::size_t i) {
    const std::size_t first = i * kColumnsAtOnce;
    extremes[i] = add_columns(x, first, std::min(kColumnsAtOnce, x.cols - first),
                              square_sums_.data() + first);
  });
  for (const Extremes& part : extremes) {
    min_ = std::min(min_, part.min);
    max_ = std::max(max_, part.max);
  }
  tokens_ += x.rows;
}

InputSummary InputStatistics::summary() const {
  INGOT_CHECK(tokens_ > 0);
  InputSummary summary{.min = min_, .max = max_, .mean_square = {}};
  summary.mean_square.reserve(square_sums_.size());
  for (std::size_t c = 0; c < square_sums_.size(); ++c) {
    const double mean = square_sums_[c] / static_cast<double>(tokens_);
    const auto rounded = static_cast<float>(mean);
    if (!std::isfinite(rounded)) {
      throw Error(
          ErrorCode::kNonFinite,
          fmt::format("its input has a mean square of {} in column {}, beyond FP32", mean, c));
    }
    summary.mean_square.push_back(rounded);
  }
  return summary;
}

}  // namespace ingot::verify
