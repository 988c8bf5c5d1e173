#pragma once

#include <string>
#include <utility>

#include "convert/plan/plan.h"
#include "convert/recipe/refusals.h"

namespace ingot::convert {

/// What the members of one fused module have in common: where the module stands, and how loaders
/// fuse it. Tensors that nothing fuses have their own.
using FusedKey = std::pair<std::string, formats::Fuse>;
FusedKey fused_key(const formats::LogicalTensor& tensor);

/// Joins the tensors that share a global scale into Plan::groups: those that loaders fuse, and each
/// other tensor of such a scheme alone. Fused tensors must become one scheme, all of them by the
/// same action where they share a scale; others are refused.
void join_fused_tensors(const formats::TensorSource& source, Plan& plan, Refusals& refusals);

}  // namespace ingot::convert
