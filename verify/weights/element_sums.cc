#include "verify/weights/element_sums.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "quantize/quality.h"

namespace ingot::verify {

void ElementSums::add(const ElementSums& next) {
  quantize::add_fields(*this, next);
  max_error = std::max(max_error, next.max_error);
  max_relative = std::max(max_relative, next.max_relative);
  for (std::size_t bin = 0; bin < kStepBins; ++bin) step_histogram[bin] += next.step_histogram[bin];
}

double ElementSums::cosine() const {
  if (error2 == 0) return 1;
  if (source2 == 0 || output2 == 0) return 0;
  return std::clamp(product / (std::sqrt(source2) * std::sqrt(output2)), -1.0, 1.0);
}

double ElementSums::relative_error() const {
  return error2 == 0 ? 0 : std::sqrt(error2 / source2);
}

double ElementSums::sqnr_db() const {
  if (error2 == 0) return std::numeric_limits<double>::infinity();
  return 10 * std::log10(source2 / error2);
}

double ElementSums::mean_error() const {
  const std::uint64_t summed = elements - nonfinite - source_nonfinite;
  return summed == 0 ? 0 : error / static_cast<double>(summed);
}

double ElementSums::fitted_scale() const {
  return source2 == 0 ? 1 : product / source2;
}

double ElementSums::fitted_scale_within() const {
  const double within = source2 - cut_source2;
  // Sums of FP32 units have 24 bits: a smaller difference is noise.
  if (!(within > source2 * 0x1p-16)) return 1;
  return (product - cut_product) / within;
}

}  // namespace ingot::verify
