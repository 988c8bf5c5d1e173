#pragma once

#include "convert/plan/plan.h"

namespace ingot::convert {

/// Decides how every planned tensor is cut: resolves the experts and the stages, sets
/// Plan::slicing, links and fits, and each tensor's cut and fit; tensors that cannot be cut between
/// blocks become what --tp-fit says. Before parts are planned. Throws, collected, for what cannot
/// be cut, and kUnsupported for what the layout cannot hold.
void slice_plan(const formats::Checkpoint& source, const PlanOptions& options, Plan& plan);

}  // namespace ingot::convert
