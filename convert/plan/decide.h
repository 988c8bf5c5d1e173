#pragma once

#include <vector>

#include "convert/plan/plan.h"

namespace ingot::convert {

/// What becomes of every logical tensor: action, scheme, spelling, fused groups, input scales.
/// Fills everything of Plan that comes before files: dialect, encode, via, power_of_two_scales,
/// tensors (in source order, without parts) and groups. Throws, collected, for what cannot be held
/// by the dialect, computed, or found (activation scales, scales to reuse).
void decide(const formats::Checkpoint& source, const Recipe& recipe,
            const formats::Dialect& dialect, Plan& plan);

}  // namespace ingot::convert
