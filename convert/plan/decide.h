#pragma once

#include <string>
#include <utility>

#include "convert/plan/plan.h"
#include "convert/recipe/refusals.h"

// What decide() consists of, beside the rules and the dialect.

namespace ingot::convert {

/// What the tensors of one fused module have in common: where the module stands, and how loaders
/// fuse it. Tensors that nothing fuses have their own.
using FusedKey = std::pair<std::string, formats::Fuse>;
FusedKey fused_key(const formats::LogicalTensor& tensor);

/// Joins the tensors that share a global scale into Plan::fused_sets: those that loaders fuse, and
/// each other tensor of such a scheme alone. Fused tensors must become one scheme, all of them by
/// the same action where they share a scale; others are refused.
void join_fused_tensors(Plan& plan, Refusals& refusals);

/// Sets PlannedTensor::input of every tensor whose spelling has static activations, from the ranges
/// of the calibration or from --input-scale. Fused tensors see the same input and get the scale of
/// their joint range. Modules without a range are refused, with the list.
void set_input_scales(Plan& plan, Refusals& refusals);

/// Marks the NVFP4 tensors that are encoded with weights (PlannedTensor::is_weighted) and counts
/// them. Refuses statistics of another width (kShapeMismatch); a plan in which nothing is weighted,
/// because no tensor becomes nvfp4 or scales are not searched (kInvalidArgument), or because the
/// file knows none of them (kMissingTensor). Does nothing without --importance.
void set_importance(Plan& plan, Refusals& refusals);

}  // namespace ingot::convert
