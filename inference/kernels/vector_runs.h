#pragma once

#include <cstddef>

#include "inference/kernels/dot_lanes.h"

namespace ingot::inference {

// What vector_math.h does, on this processor's vectors.

float run_dot(const float* a, const float* b, std::size_t n);
void run_softmax(float* x, std::size_t n);
void run_silu_multiply(const float* gate, const float* up, float* out, std::size_t n,
                       bool round_bf16);

/// x[i] = exp_f32(x[i] - shift), each added to lane i % kDotLanes: what of a softmax fills no
/// vector.
void exponentials(float* x, std::size_t n, float shift, DotLanes& lanes);

}  // namespace ingot::inference
