#pragma once

#include "verify/weights/weight_check.h"

// Limits of tensors with few groups. A default limit is one of the mean over many groups that share
// a scale; that of a few groups scatters. With E the squared error of a group over its squared
// values, the cosine of a tensor is at least sqrt(1 - e), where e is the mean of E over its groups,
// weighted with their squared values. Rounding to the nearest bounds E: a value of at least one
// step of its grid is at most the part q of itself away from its code, a smaller one at most half
// the least step h, and the largest code of a group of g values is at least a, as weights.coarse
// demands. So E <= r = q^2 + g (h / a)^2, and at most 1. The mean of n numbers from 0 to r with
// the variance v is above its expectation by more than t = sqrt(2 v L / n) + r L / (3 n) with a
// probability of at most p = 1e-4, where L = ln(1 / p) (Bernstein).

namespace ingot::verify {

/// The floor of a tensor's cosine, where `floor` is that of large ones.
double cosine_floor(double floor, const TensorWeights& tensor);

/// How far from 1 the factor that fits a tensor may be, where `most` is that of large ones.
double scale_error_limit(double most, const TensorWeights& tensor);

}  // namespace ingot::verify
