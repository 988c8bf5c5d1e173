#pragma once

#include "convert/plan/plan.h"
#include "convert/recipe/refusals.h"

namespace ingot::convert {

/// Sets PlannedTensor::input of every tensor whose spelling has static activations, from the ranges
/// of the calibration or from --input-scale. Fused tensors see the same input and get the scale of
/// their joint range. Modules without a range are refused, with the list.
void set_input_scales(const formats::TensorSource& source, const Choices& choices, Plan& plan,
                      Refusals& refusals);

/// Marks the NVFP4 tensors that are encoded with weights (PlannedTensor::is_weighted) and counts
/// them. Refuses statistics of another width (kShapeMismatch); a plan in which nothing is weighted,
/// because no tensor becomes nvfp4 or scales are not searched (kInvalidArgument), or because the
/// file knows none of them (kMissingTensor). Does nothing without --importance.
void set_importance(const formats::TensorSource& source, const Choices& choices, Plan& plan,
                    Refusals& refusals);

}  // namespace ingot::convert
