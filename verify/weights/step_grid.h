#pragma once

#include "formats/storage/encoding.h"

namespace ingot::verify {

/// The numbers that the codes of a scheme stand for, before they are multiplied with a scale. The
/// step between two neighbours is a power of two that follows from the smaller of them, x:
/// 2^max(floor(log2 |x|), log2 floor) x step_factor.
struct StepGrid {
  float floor = 1;        ///< below this power of two the step no longer shrinks
  float step_factor = 1;  ///< 2^-(bits of the mantissa)
  /// Farther than this many steps from the source is misrounded: half, and 1e-4 for the rounding of
  /// scale and product. 0 for F32, which has no reason to differ at all.
  float limit = 0;
  float largest = 0;  ///< code; infinite for F32
  /// What a decoded value divided by its scale is multiplied with before its exponent is taken, as
  /// it may lie an FP32 rounding below a power of two.
  float slack = 1;
};

/// The grid of every scheme but kRaw.
const StepGrid& step_grid(formats::SchemeId scheme);

}  // namespace ingot::verify
