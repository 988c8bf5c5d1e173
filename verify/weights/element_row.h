#pragma once

#include <cstddef>
#include <cstdint>

#include "formats/storage/encoding.h"

namespace ingot::verify {

/// The values of a scheme's codes, before they are multiplied with a scale. The step between two
/// neighbours is a power of two that follows from the smaller of them, x: 2^max(floor(log2 |x|),
/// log2 floor) x step_factor.
struct StepGrid {
  float floor = 1;        ///< power of two below which the step no longer shrinks
  float step_factor = 1;  ///< 2^-(bits of the mantissa)
  /// Number of steps: a value farther from the source is misrounded. It is half a step, and 1e-4
  /// for the rounding of scale and product. 0 for F32, which has no reason to differ at all.
  float limit = 0;
  float largest = 0;  ///< largest code; infinite for F32
  /// A factor of a decoded value divided by its scale, before its exponent is taken, as it may lie
  /// an FP32 rounding below a power of two.
  float slack = 1;
  bool has_signed_scales = false;  ///< a scale may be negative; its magnitude is the step

  /// True if all steps are the same: no code reaches the power of two from which on steps grow.
  [[nodiscard]] bool is_even() const { return floor > largest; }
};

/// The grid of every scheme but kRaw.
StepGrid step_grid(formats::SchemeId scheme);

/// Lanes of the FP32 sums, and columns that share a scale.
inline constexpr std::size_t kRowStep = 16;
/// Columns that are summed in FP32.
inline constexpr std::size_t kRowUnit = 128;
/// Columns of a piece.
inline constexpr std::size_t kRowPiece = 2048;
/// Sources below do not count for max_relative.
inline constexpr float kLeastRelative = 0x1p-100F;

/// One piece of a row on both sides.
struct RowPiece {
  const float* source = nullptr;
  const float* output = nullptr;
  std::size_t n = 0;  ///< 1 to kRowPiece
  /// For every 16 columns: grid.slack / scale, and grid.limit x grid.step_factor x scale, which is
  /// how far a value between 1 and 2 scales may be from its source; on an even grid x grid.floor,
  /// which is how far any may be.
  const float* inverse = nullptr;
  const float* limit = nullptr;
};

/// Sums of one piece; without meaning where they are not finite.
struct RowSums {
  std::uint64_t exact = 0, misrounded = 0, saturated = 0, zeroed = 0;
  double error = 0, error2 = 0, source2 = 0;
  double cross = 0;  ///< sum of source x error
  float max_error = 0;
  /// In: the largest so far, which spares divisions. Out: the larger of it and this piece's.
  float max_relative = 0;
};

/// Adds to `sums`, which begin as zeros but for max_relative. Order of the sums: element_run.h. The
/// SIMD targets agree with the scalar twin where all sums are finite.
void compare_row(const RowPiece& piece, const StepGrid& grid, RowSums& sums);

/// True if a piece of `n` BF16 words, at most kRowPiece, is the same on both sides; then sets
/// `source2` to its RowSums::source2.
bool sum_same_words(const std::byte* source, const std::byte* output, std::size_t n,
                    double& source2);

namespace scalar {
void compare_row(const RowPiece& piece, const StepGrid& grid, RowSums& sums);
bool sum_same_words(const std::byte* source, const std::byte* output, std::size_t n,
                    double& source2);
}  // namespace scalar

/// Only a relative error above this needs a division: just below the largest so far. Exactly 1
/// stays, as every value that became zero gives 1.
inline float relative_filter(float max_relative) {
  return max_relative == 1 ? 1 : max_relative * (1 - 0x1p-22F);
}

/// Sums of the lanes, folded as element_run.h states. The lanes are overwritten.
inline double fold_lanes(double* lanes) {
  for (std::size_t half = kRowStep / 2; half > 0; half /= 2) {
    for (std::size_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

}  // namespace ingot::verify
