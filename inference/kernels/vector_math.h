#pragma once

#include <span>

namespace ingot::inference {

/// e^x in FP32 arithmetic of a fixed sequence (no fused operations), within 2 ulp; 0 below -104,
/// infinity above 88.73. NaN stays NaN. The same bits on every target.
float exp_f32(float x);

/// 1 / (1 + e^-x).
float sigmoid_f32(float x);

/// log(1 + e^x), computed in FP64 and rounded once; x above 20.
float softplus_f32(float x);

/// x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))), computed in FP64 and rounded once.
float gelu_f32(float x);

/// cap * tanh(x / cap), the tanh computed in FP64 and rounded once.
float soft_capped(float x, float cap);

/// Dot product in the order of kDotLanes (matmul.h).
float dot(std::span<const float> a, std::span<const float> b);

/// Sum of squares in the order of kDotLanes.
float sum_of_squares(std::span<const float> x);

/// x[i] = e^(x[i] - max) / sum, sum in the order of kDotLanes over i. A run of no values stays. The
/// maximum ignores NaN; a NaN stays one.
void softmax(std::span<float> x);

/// out[i] = silu(gate[i]) * up[i], silu(v) = v / (1 + e^-v). With `round_bf16`
/// the silu and the product are each rounded to BF16. out may be gate or up.
void silu_multiply(std::span<const float> gate, std::span<const float> up, std::span<float> out,
                   bool round_bf16);

/// The specifications: element by element.
namespace scalar {
float dot(std::span<const float> a, std::span<const float> b);
float sum_of_squares(std::span<const float> x);
void softmax(std::span<float> x);
void silu_multiply(std::span<const float> gate, std::span<const float> up, std::span<float> out,
                   bool round_bf16);
}  // namespace scalar

}  // namespace ingot::inference
