#pragma once

#include <cstdint>
#include <span>
#include <tuple>

#include "formats/container/tensor.h"

namespace ingot::quantize {

/// Adds the fields() of a struct to those of another.
template <typename Sums>
void add_fields(Sums& sums, const Sums& next) {
  const auto add = [&](auto&... sum) {
    std::apply([&](const auto&... more) { ((sum += more), ...); }, Sums::fields(next));
  };
  std::apply(add, Sums::fields(sums));
}

/// Sums from which the error of an encoding follows. Exactly those of the values at hand in a fixed
/// order: one unit is a row by 128 columns, summed in double in eight lanes (column modulo 8) that
/// are folded as ((0+4)+(2+6))+((1+5)+(3+7)); differences are cut off after as many bits as FP32
/// has, which seldom have more; units are added in order of rows, then columns.
struct QualitySums {
  std::uint64_t elements = 0;
  std::uint64_t blocks = 0, exact_blocks = 0;  ///< all groups that share a scale; those of no error
  /// Cut off at the largest code: farther from it than half the step below it, and 2^-10 of that
  /// for the rounding of scale and product.
  std::uint64_t saturated = 0;
  std::uint64_t zeroed = 0;  ///< nonzero values that became zero
  double error2 = 0;         ///< sum of (value - decoded)^2
  double reference2 = 0;     ///< sum of value^2
  double product = 0;        ///< sum of value x decoded
  double max_error = 0;      ///< largest magnitude of the differences in FP32

  /// Adds the sums of the next part.
  void add(const QualitySums& next);
  /// All sums, in the order in which they are kept; max_error is none.
  static auto fields(auto& of) {
    return std::tie(of.elements, of.blocks, of.exact_blocks, of.saturated, of.zeroed, of.error2,
                    of.reference2, of.product);
  }

  [[nodiscard]] double relative_error() const;  ///< Frobenius; 0 for no error, even of zeros
  [[nodiscard]] double sqnr_db() const;         ///< infinite without error, NaN for all zeros
  [[nodiscard]] double cosine() const;          ///< 1 when both sides are zero

  friend bool operator==(const QualitySums&, const QualitySums&) = default;
};

/// The values of a run and those that the stored codes decode to.
struct QualityRun {
  formats::MatrixView<const float> values, decoded;
  std::span<const float> scales{};  ///< effective, row-major over the groups of the run
  std::uint64_t block_rows = 0, block_cols = 0;  ///< 0: no scales, one block per row
  float half_top_step = 0;                       ///< quantize::half_top_step
};

/// Measures a run that starts at the first row and column of a group; block_cols is a multiple of
/// 8, or the run's whole width.
QualitySums measure_quality(const QualityRun& run);

namespace scalar {
QualitySums measure_quality(const QualityRun& run);  ///< the specification
}

}  // namespace ingot::quantize
