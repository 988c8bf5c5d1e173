#pragma once

#include "convert/plan.h"
#include "convert/refusals.h"

namespace ingot::convert {

/// Sets PlannedTensor::input of every tensor whose spelling has static activations, from the ranges
/// of the calibration or from --input-scale. Fused tensors see the same input and get the scale of
/// their joint range. Modules without a range are refused, with the list.
void set_input_scales(const formats::TensorSource& source, const Choices& choices, Plan& plan,
                      Refusals& refusals);

}  // namespace ingot::convert
