#pragma once

#include <span>

namespace ingot::inference {

/// y_b = n^-1/2 * sum over a of (-1)^popcount(a & b) * x_a, in place; n = x.size() is a power of
/// two. In FP32, by halves: strides 1, 2, 4, ... Its own inverse.
void hadamard(std::span<float> x);

}  // namespace ingot::inference
