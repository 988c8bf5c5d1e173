#pragma once

#include <cstddef>
#include <span>

#include "quantize/scheme.h"

namespace ingot::quantize {

/// Consecutive groups of one row, and all that decides their scales.
struct Int4Groups {
  const float* values = nullptr;  ///< finite, n_groups x group_cols
  std::size_t n_groups = 0;
  std::size_t group_cols = 0;
  ScaleSearch search = ScaleSearch::kMse;
  /// Weight of each value's squared error, within [0, 1], n_groups x group_cols; null: 1.
  const float* weights = nullptr;
};

/// Chooses a scale per group, a BF16 number; 1 for a group of zeros. All arithmetic is FP32.
///
/// The amax scale is amax / 7 rounded to BF16, and at least the smallest BF16 number. kMse takes
/// the one with the smallest error among amax / d for d from 7 to 12 in steps of 1/8, each rounded
/// to BF16; kSigned among the same and their negatives, each behind its positive: the codes reach
/// one step farther on that side. On a tie the earlier wins. Then the scale that fits the codes
/// under the winner best, sum of x q / sum of q^2 rounded to BF16, is taken if its error is
/// smaller.
///
/// The error of a scale s is the sum of (x - q s)^2 over the group, with q = x (1 / s), rounded to
/// an integer with ties to even, from -8 to 7; x and s are first multiplied by a power of two that
/// makes amax a number from 1 to 2. Each term of the three sums is multiplied by the value's
/// weight, if there are weights. Terms i, i + 16, ... are added in this order into sum i; the
/// sixteen are folded by halves: 0 + 8, ..., then 0 + 4, ..., 0 + 2, 0 + 1.
void choose_int4_scales(const Int4Groups& in, std::span<float> scales);

namespace scalar {
void choose_int4_scales(const Int4Groups& in, std::span<float> scales);
}

}  // namespace ingot::quantize
