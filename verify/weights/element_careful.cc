#include "verify/weights/element_careful.h"

#include <algorithm>
#include <cmath>

#include "verify/weights/element_row.h"

namespace ingot::verify {
namespace {

/// What is taken of one element.
struct Element {
  double source, output, scale;
  [[nodiscard]] double distance() const { return std::fabs(output - source); }
};

/// Distance to the neighbour on the source's side; 0 under a scale that is none.
double step_at(const Element& element, const StepGrid& grid) {
  if (!std::isfinite(element.scale) || element.scale <= 0) return 0;
  const double code = std::min(std::fabs(element.source), std::fabs(element.output)) /
                      element.scale * static_cast<double>(grid.slack);
  int exponent = 0;
  std::frexp(std::max(code, static_cast<double>(grid.floor)), &exponent);
  return std::ldexp(static_cast<double>(grid.step_factor) * element.scale, exponent - 1);
}

void judge(const Element& element, const StepGrid& grid, double step, ElementSums& sums) {
  double limit = static_cast<double>(grid.limit) * step;
  if (limit > 0 && element.scale < 0x1p-100) limit += 0x1p-149;
  if (element.distance() <= limit) return;
  const double top = static_cast<double>(grid.largest * (1 - 0x1p-12F)) * element.scale;
  const bool is_beyond = step > 0 && std::fabs(element.output) >= top &&
                         std::fabs(element.source) > std::fabs(element.output) &&
                         std::signbit(element.source) == std::signbit(element.output);
  ++(is_beyond ? sums.saturated : sums.misrounded);
}

void add_finite(const Element& element, const StepGrid& grid, bool is_in_histogram,
                ElementSums& sums) {
  const double error = element.output - element.source;
  const double distance = std::fabs(error);
  sums.error += error;
  sums.error2 += error * error;
  sums.source2 += element.source * element.source;
  sums.output2 += element.output * element.output;
  sums.product += element.source * element.output;
  sums.exact += error == 0 ? 1 : 0;
  sums.zeroed += element.output == 0 && element.source != 0 ? 1 : 0;
  sums.max_error = std::max(sums.max_error, distance);
  // FP32, as where there is no need to be careful.
  if (std::fabs(element.source) >= static_cast<double>(kLeastRelative)) {
    const auto relative =
        static_cast<float>(distance) / static_cast<float>(std::fabs(element.source));
    sums.max_relative = std::max(sums.max_relative, static_cast<double>(relative));
  }
  const double step = step_at(element, grid);
  judge(element, grid, step, sums);
  if (!is_in_histogram) return;
  const double bin = distance == 0 ? 0
                     : step == 0   ? kStepBins
                                   : distance / step * 16 * static_cast<double>(kBinFactor);
  ++sums.step_histogram[bin < kStepBins - 1 ? static_cast<std::size_t>(bin) : kStepBins - 1];
}

}  // namespace

void compare_carefully(const CarefulPiece& piece, const StepGrid& grid, ElementSums& sums) {
  for (std::size_t c = 0; c < piece.n; ++c) {
    const float scale =
        piece.scales == nullptr ? 1 : piece.scales[(piece.into_group + c) / piece.group];
    if (!std::isfinite(piece.source[c])) {
      ++sums.source_nonfinite;
    } else if (!std::isfinite(piece.output[c])) {
      ++sums.nonfinite;
    } else {
      add_finite({.source = static_cast<double>(piece.source[c]),
                  .output = static_cast<double>(piece.output[c]),
                  .scale = static_cast<double>(scale)},
                 grid, piece.is_in_histogram, sums);
    }
  }
}

}  // namespace ingot::verify
