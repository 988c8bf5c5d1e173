#include <algorithm>
#include <array>
#include <cmath>

#include "quantize/kernels/quality_row.h"

namespace ingot::quantize::scalar {

void measure_row(const float* values, const float* decoded, std::size_t n, const float* thresholds,
                 std::uint8_t* inexact, QualitySums& sums) {
  for (std::size_t begin = 0; begin < n; begin += kQualityUnit) {
    std::array<double, kQualityStep> error2{}, reference2{}, product{};
    for (std::size_t c = begin; c < std::min(begin + kQualityUnit, n); ++c) {
      const double value = values[c];
      const double stored = decoded[c];
      const float difference = std::fabs(values[c] - decoded[c]);
      const double error = difference;
      error2[c % kQualityStep] += error * error;
      reference2[c % kQualityStep] += value * value;
      product[c % kQualityStep] += value * stored;
      sums.max_error = std::max(sums.max_error, error);
      sums.saturated += difference > thresholds[c / kQualityStep] ? 1U : 0U;
      sums.zeroed += value != 0 && stored == 0 ? 1 : 0;
      if (value != stored) inexact[c / kQualityStep] = 1;
    }
    sums.error2 += fold_lanes(error2.data());
    sums.reference2 += fold_lanes(reference2.data());
    sums.product += fold_lanes(product.data());
  }
}

}  // namespace ingot::quantize::scalar
