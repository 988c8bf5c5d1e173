#pragma once

#include <cstddef>
#include <span>

#include "formats/container/tensor.h"
#include "quantize/block_moments.h"

namespace ingot::quantize {

/// Groups of INT4 codes in the rows of a run, and the moments that decide their scales.
struct Int4MomentGroups {
  formats::MatrixView<const float> values;  ///< finite; whole groups
  std::span<const MomentBlock> moments;     ///< one for every 16 columns
  std::size_t group_cols = 0;               ///< a multiple of 16
};

/// Chooses the scale of each group, row-major, that loses least by moments, exactly: among all
/// positive BF16 numbers s of at least kLeastHessianShare times the first, that is amax / 7 rounded
/// to BF16, under which the code of the largest magnitude is at least 4. 1 for a group of zeros.
///
/// The loss of a group is the sum over its blocks of 16 columns, that of a block the sum of z^2
/// over the columns k of the factor U, with z the sum of d U over the rows up to k, and d = x - s
/// q, q the nearest integer to x / s, ties to even, from -8 to 7. All sums are double, begin with 0
/// and go up. On a tie the first wins, then the least. Pure; every SIMD target has the bits of its
/// scalar twin, and only the twin computes every loss.
void choose_int4_scales_by_moments(const Int4MomentGroups& in, std::span<float> scales);

namespace scalar {
void choose_int4_scales_by_moments(const Int4MomentGroups& in, std::span<float> scales);
}

}  // namespace ingot::quantize
