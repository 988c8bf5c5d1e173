#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>

#include "formats/base/error.h"
#include "formats/container/bfloat16.h"
#include "inference/kernels/dot_lanes.h"
#include "inference/kernels/vector_math.h"

namespace ingot::inference {
namespace {

float power_of_two(std::int32_t n) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(n + 127) << 23);
}

float to_bf16(float value) {
  return formats::float_from_bf16(formats::bf16_from_float(value));
}

}  // namespace

float exp_f32(float x) {
  if (std::isnan(x)) return one_nan(x);
  if (x < kExpLowest) return 0;
  if (x > kExpLargest) return std::numeric_limits<float>::infinity();
  const float sum = x * kInverseLn2 + kRoundToInteger;
  const float n = sum - kRoundToInteger;
  const auto whole = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(sum) -
                                               std::bit_cast<std::uint32_t>(kRoundToInteger));
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = kExpCoefficients[0];
  for (std::size_t i = 1; i < std::size(kExpCoefficients); ++i) p = p * r + kExpCoefficients[i];
  const float e = (p * (r * r) + r) + 1.0F;
  const std::int32_t half = whole >> 1;
  return (e * power_of_two(half)) * power_of_two(whole - half);
}

float sigmoid_f32(float x) {
  return 1.0F / (1.0F + exp_f32(-x));
}

float softplus_f32(float x) {
  return x > 20.0F ? x : static_cast<float>(std::log1p(std::exp(static_cast<double>(x))));
}

float gelu_f32(float x) {
  const auto wide = static_cast<double>(x);
  const double inner =
      std::numbers::sqrt2 * std::numbers::inv_sqrtpi * (wide + 0.044715 * wide * wide * wide);
  return static_cast<float>(0.5 * wide * (1 + std::tanh(inner)));
}

float soft_capped(float x, float cap) {
  return static_cast<float>(std::tanh(static_cast<double>(x / cap))) * cap;
}

void exponentials(float* x, std::size_t n, float shift, DotLanes& lanes) {
  for (std::size_t i = 0; i < n; ++i) {
    x[i] = exp_f32(x[i] - shift);
    lanes[i % kDotLanes] = lanes[i % kDotLanes] + x[i];
  }
}

namespace scalar {

float dot(std::span<const float> a, std::span<const float> b) {
  INGOT_CHECK(a.size() == b.size());
  DotLanes lanes{};
  add_products(a.data(), b.data(), a.size(), lanes);
  return one_nan(fold_lanes(lanes));
}

float sum_of_squares(std::span<const float> x) {
  return scalar::dot(x, x);
}

void softmax(std::span<float> x) {
  float largest = -std::numeric_limits<float>::infinity();
  for (const float value : x) {
    if (value > largest) largest = value;
  }
  DotLanes lanes{};
  exponentials(x.data(), x.size(), largest, lanes);
  const float sum = fold_lanes(lanes);
  for (float& value : x) value = one_nan(value / sum);
}

void silu_multiply(std::span<const float> gate, std::span<const float> up, std::span<float> out,
                   bool round_bf16) {
  INGOT_CHECK(gate.size() == out.size() && up.size() == out.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    const float silu = gate[i] / (1.0F + exp_f32(-gate[i]));
    const float product = (round_bf16 ? to_bf16(silu) : silu) * up[i];
    out[i] = one_nan(round_bf16 ? to_bf16(product) : product);
  }
}

}  // namespace scalar
}  // namespace ingot::inference
