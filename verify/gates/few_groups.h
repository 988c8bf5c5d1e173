#pragma once

#include "verify/weights/weight_check.h"

// Limits of tensors with few groups. A default limit is one of the mean over many groups that share
// a scale; that of a few groups scatters. docs/verify.md, "Few groups", derives both functions.

namespace ingot::verify {

/// The floor of a tensor's cosine, where `floor` is that of large ones.
double cosine_floor(double floor, const TensorWeights& tensor);

/// How far from 1 the factor that fits a tensor may be, where `most` is that of large ones.
double scale_error_limit(double most, const TensorWeights& tensor);

}  // namespace ingot::verify
