#pragma once

#include <cstddef>
#include <cstdint>

#include "quantize/quality.h"

namespace ingot::quantize {

/// Lanes of a unit.
inline constexpr std::size_t kQualityStep = 8;
/// Columns of a unit of summation.
inline constexpr std::size_t kQualityUnit = 128;

/// Bits of a double that are kept of a difference: as many as a float has, whose square is exact.
inline constexpr std::uint64_t kErrorBits = ~((std::uint64_t{1} << 29) - 1);

/// Adds the sums of one row, unit by unit, to `sums` (all but the counts of elements and blocks).
/// Terms and sums are taken in double, those of errors of the bits in kErrorBits; counts and the
/// largest error of differences in FP32. `step` columns share a threshold and a
/// flag: a power of two from kQualityStep to kQualityUnit. Errors above thresholds[c / step] count
/// as saturated; inexact[c / step] becomes 1 where any value of a step differs from its decoded
/// one. The SIMD targets agree with the scalar twin.
void measure_row(const float* values, const float* decoded, std::size_t n, std::size_t step,
                 const float* thresholds, std::uint8_t* inexact, QualitySums& sums);

namespace scalar {
void measure_row(const float* values, const float* decoded, std::size_t n, std::size_t step,
                 const float* thresholds, std::uint8_t* inexact, QualitySums& sums);
}

/// The lanes of a unit, folded in the order that the header of QualitySums states.
inline double fold_lanes(const double* lanes) {
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
         ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

}  // namespace ingot::quantize
