#pragma once

#include "convert/plan/plan.h"

namespace ingot::convert {

/// Throws kInvalidArgument, collected, for options of `recipe.given` that have no effect on the
/// plan, each with what it belongs to.
void refuse_idle_options(const formats::Checkpoint& source, const Recipe& recipe, const Plan& plan);

}  // namespace ingot::convert
