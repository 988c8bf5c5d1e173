#pragma once

#include <array>
#include <cstdint>
#include <tuple>

#include "formats/storage/encoding.h"

namespace ingot::verify {

/// Errors in units of the output's grid step, for the histogram: bins of 1/16 step, the last for
/// everything from 1.5 on.
inline constexpr std::size_t kStepBins = 25;
/// Errors are shortened by this before they are binned, so that ties at half a step are not beyond
/// it, as `limit` does when misrounded values are counted.
inline constexpr float kBinFactor = 1 - 0x1p-11F;

/// The result of comparing values one by one. Exact counts; sums in double over a fixed order (see
/// compare_elements), so that results do not depend on threads or SIMD target.
struct ElementSums {
  std::uint64_t elements = 0;
  std::uint64_t exact = 0;       ///< equal values (0 and -0 are)
  std::uint64_t misrounded = 0;  ///< farther than (0.5 + 1e-4) grid steps from the source
  std::uint64_t saturated = 0;   ///< values that far, but at the largest code with a larger source
  std::uint64_t zeroed = 0;      ///< nonzero became zero
  std::uint64_t nonfinite =
      0;  ///< NaN or infinite in the output where the source is not; in no sum
  std::uint64_t source_nonfinite = 0;  ///< NaN or infinite in the source; in no sum
  double error = 0;                    ///< sum of output - source
  double error2 = 0;                   ///< sum of (output - source)^2
  double source2 = 0;                  ///< sum of source^2
  double output2 = 0;                  ///< sum of output^2
  double product = 0;                  ///< sum of source x output
  /// The parts of source2 and product that saturated values have; 0 where they were not asked for.
  double cut_source2 = 0, cut_product = 0;
  double max_error = 0;     ///< largest |output - source|
  double max_relative = 0;  ///< largest |output - source| / |source| over sources from 2^-100 on
  std::array<std::uint64_t, kStepBins> step_histogram{};  ///< distances in steps, of one row in 64

  void add(const ElementSums& next);
  /// All sums, in the order in which they are kept; maxima and the histogram are none.
  static auto fields(auto& of) {
    return std::tie(of.elements, of.exact, of.misrounded, of.saturated, of.zeroed, of.nonfinite,
                    of.source_nonfinite, of.error, of.error2, of.source2, of.output2, of.product,
                    of.cut_source2, of.cut_product);
  }

  [[nodiscard]] double cosine() const;          ///< 1 when both sides are zero; 0 when one is
  [[nodiscard]] double relative_error() const;  ///< Frobenius; 0 without error, even of zeros
  [[nodiscard]] double sqnr_db() const;         ///< infinite without error
  [[nodiscard]] double mean_error() const;      ///< signed
  [[nodiscard]] double fitted_scale()
      const;  ///< least squares a in output = a x source; 1 for zeros
  /// fitted_scale() of the values that are not in cut_source2; 1 where these are all.
  [[nodiscard]] double fitted_scale_within() const;

  friend bool operator==(const ElementSums&, const ElementSums&) = default;
};

}  // namespace ingot::verify
