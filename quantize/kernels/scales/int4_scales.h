#pragma once

#include <cstddef>
#include <cstdint>
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

/// Chooses a scale per group, a BF16 number, and a zero point where there is room for them; 1 and 8
/// for a group of zeros. All arithmetic is FP32.
///
/// Without zero points (`zeros` is empty) the amax scale is amax / 7 rounded to BF16, and at least
/// the smallest BF16 number. kMse takes the one with the smallest error among amax / d for d from 7
/// to 12 in steps of 1/8, each rounded to BF16; kSigned among the same and their negatives, each
/// behind its positive: the codes reach one step farther on that side. On a tie the earlier wins.
/// Then the scale that fits the codes under the winner best, sum of x q / sum of q^2 rounded to
/// BF16, is taken if its error is smaller.
///
/// The error of a scale s is the sum of (x - q s)^2 over the group, with q = x (1 / s), rounded to
/// an integer with ties to even, from -8 to 7; x and s are first multiplied by a power of two that
/// makes amax a number from 1 to 2. Each term of the three sums is multiplied by the value's
/// weight, if there are weights. Terms i, i + 16, ... are added in this order into sum i; the
/// sixteen are folded by halves: 0 + 8, ..., then 0 + 4, ..., 0 + 2, 0 + 1.
///
/// With zero points (one per group in `zeros`, 0 to 15) q is from -z to 15 - z, and no scale is
/// negative. The range r of a group is that of its values and 0, from `low` to `high`. The kAmax
/// scale is r / 15 rounded to BF16, z is -low / s rounded to an integer, at most 15. Any other
/// search tries first what kMse chooses, with z = 8; then r / d for d from 8 to 28 in steps of 1/2,
/// each rounded to BF16, with each z from min(b, 15 - t) to b, within 0 to 15, where b = -low / s
/// and t = high / s, rounded to integers: any other z cuts off more on one side, and no less on the
/// other. On a tie the earlier wins. Then the scale that fits the codes best, as above. So the
/// error is at most that of kMse; and codes under a BF16 scale that are decoded come back, as one
/// of the d is a power of two times the steps between the least and the largest.
void choose_int4_scales(const Int4Groups& in, std::span<float> scales,
                        std::span<std::uint8_t> zeros = {});

namespace scalar {
void choose_int4_scales(const Int4Groups& in, std::span<float> scales,
                        std::span<std::uint8_t> zeros = {});
}

}  // namespace ingot::quantize
