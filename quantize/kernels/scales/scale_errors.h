#pragma once

#include <span>

#include "quantize/block_moments.h"
#include "quantize/kernels/code_encode.h"

namespace ingot::quantize {

/// The squared error that each group would have under its scale, in units of the square of the
/// scale; row-major over the groups of the run. Scales are above zero and at least 2^-127.
///
/// The error is the sum of (y - q)^2 over the group, with y = x (1 / s) and q the code's value that
/// is nearest to y, with ties to even. All arithmetic is FP32. Each term is multiplied by the
/// weight of its column, if there are weights: one within [0, 1] for each column of the run; null:
/// 1. Terms of column i of the group are added to sum i mod 16, row after row; the sixteen are
/// folded by halves: 0 + 8, ..., then 0 + 4, ..., 0 + 2, 0 + 1. Pure; the bits are those of the
/// scalar twins on every SIMD target.

/// Computes errors of E4M3. No value is above 448 times the scale of its group, but for rounding.
void e4m3_errors(const ScaledGroups& in, const float* weights, std::span<float> errors);
/// Computes errors of INT8, -127 to 127.
void int8_errors(const ScaledGroups& in, const float* weights, std::span<float> errors);
/// Computes errors of E2M1, at most 6 in magnitude.
void e2m1_errors(const ScaledGroups& in, const float* weights, std::span<float> errors);

/// Computes the error by moments of each group under each of several scales, in units of the
/// square of the scale. `in.scales` has the scales of all groups one by one, then the next of each,
/// and so on, and `in.zeros` as many or none; `errors` has as many. Columns of a group are a
/// multiple of 16; `moments` has a block for every 16 columns of the run.
///
/// The error of a group is the sum of those of its rows, the error of a row that of its blocks.
/// That of a block is the sum of z^2 over the columns k of the factor U, with z the sum of r U over
/// the rows up to k, r = y - q, y = x / s, and q the code's value that is nearest to y, with ties
/// to even, as it is encoded. All sums begin with 0 and go up; all arithmetic is FP32. Pure; the
/// bits are those of the scalar twin on every SIMD target.
void hessian_errors(formats::CodeKind kind, const ScaledGroups& in,
                    std::span<const MomentBlock> moments, std::span<float> errors);

/// Groups of E2M1 codes in the rows of a run, and all that decides their scales by moments.
struct HessianGroups {
  formats::MatrixView<const float> values;  ///< finite; whole groups
  std::span<const MomentBlock> moments;     ///< one for every 16 columns
  std::size_t group_cols = 0;               ///< 16 or 32
  /// Effective scales by their codes, ascending; not negative.
  std::span<const float> scales;
  /// The least quotient of the largest value of a group by a scale that is tried, other than the
  /// first: a larger scale would be coarser than the values are.
  float least_reach = 0;
};

/// The least scale that is tried, as a share of the first. The largest value of a group keeps more
/// than a quarter of itself, however little its input matters.
inline constexpr float kLeastHessianShare = 0.3125F;

/// Replaces the code of each group's scale, row-major, the first to be tried, by the one with the
/// least error among those around it: as of hessian_errors, times (its scale / the scale of the
/// first)^2. On a tie the first wins, then the lowest.
void choose_hessian_codes(const HessianGroups& in, std::span<std::uint8_t> codes);

namespace scalar {

void hessian_errors(formats::CodeKind kind, const ScaledGroups& in,
                    std::span<const MomentBlock> moments, std::span<float> errors);
void choose_hessian_codes(const HessianGroups& in, std::span<std::uint8_t> codes);

void e4m3_errors(const ScaledGroups& in, const float* weights, std::span<float> errors);
void int8_errors(const ScaledGroups& in, const float* weights, std::span<float> errors);
void e2m1_errors(const ScaledGroups& in, const float* weights, std::span<float> errors);

}  // namespace scalar

}  // namespace ingot::quantize
