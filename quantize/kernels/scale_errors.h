#pragma once

#include <span>

#include "quantize/kernels/code_encode.h"

namespace ingot::quantize {

/// The squared error that each group would have under its scale, in units of the square of the
/// scale; row-major over the groups of the run. Scales are above zero and at least 2^-127.
///
/// The error is the sum of (y - q)^2 over the group, with y = x (1 / s) and q the code's value that
/// is nearest to y, with ties to even. All arithmetic is FP32. Each term is multiplied by the
/// weight of its column, if there are weights: one within [0, 1] for each column of the run; null:
/// 1. Terms of column i of the group are added to sum i mod 16, row after row; the sixteen are
/// folded by halves: 0 + 8, ..., then 0 + 4, ..., 0 + 2, 0 + 1. Pure; the bits are those of the
/// scalar twins on every SIMD target.

/// Computes errors of E4M3. No value is above 448 times the scale of its group, but for rounding.
void e4m3_errors(const ScaledGroups& in, const float* weights, std::span<float> errors);
/// Computes errors of INT8, -127 to 127.
void int8_errors(const ScaledGroups& in, const float* weights, std::span<float> errors);
/// Computes errors of E2M1, at most 6 in magnitude.
void e2m1_errors(const ScaledGroups& in, const float* weights, std::span<float> errors);

namespace scalar {

void e4m3_errors(const ScaledGroups& in, const float* weights, std::span<float> errors);
void int8_errors(const ScaledGroups& in, const float* weights, std::span<float> errors);
void e2m1_errors(const ScaledGroups& in, const float* weights, std::span<float> errors);

}  // namespace scalar

}  // namespace ingot::quantize
