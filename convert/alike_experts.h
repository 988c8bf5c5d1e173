#pragma once

#include "convert/plan/plan.h"

namespace ingot::convert {

/// Makes the plan of make_plan(). Where the engine of --for loads shared experts as further routed
/// ones (engines::fused_layers), and so needs an option for some that the plan stores in another
/// form, they take the scheme of their layer's routed experts instead, and a warning says so: if
/// --to is a quantized scheme, no rule of the user and no choice about MTP layers decides about
/// them, and the engine loads that output without the option. `recipe` has the default rules.
Plan plan_with_alike_experts(const formats::Checkpoint& source, Recipe recipe,
                             const PlanOptions& options, SourceFacts facts);

}  // namespace ingot::convert
