#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>

#include "inference/kernels/matmul.h"

namespace ingot::inference {

using quantize::one_nan;

/// The partial sums of a dot product. No lane is ever -0, so that adding a product of zeros changes
/// nothing: vector kernels may pad with zeros.
using DotLanes = std::array<float, kDotLanes>;

/// The sum of the lanes, by halves. Not yet one_nan.
inline float fold_lanes(DotLanes lanes) {
  for (std::size_t half = kDotLanes / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) lanes[i] = lanes[i] + lanes[i + half];
  }
  return lanes[0];
}

/// Adds the products of `n` elements to the lanes, the first one to lane 0.
inline void add_products(const float* a, const float* b, std::size_t n, DotLanes& lanes) {
  DotLanes sums = lanes;  // a copy has no alias, so it stays in registers
  std::size_t k = 0;
  const auto add = [&](std::size_t lane) {
    const float product = a[k + lane] * b[k + lane];
    sums[lane] = sums[lane] + product;
  };
  for (; k + kDotLanes <= n; k += kDotLanes)
    for (std::size_t lane = 0; lane < kDotLanes; ++lane) add(lane);
  for (std::size_t lane = 0; k + lane < n; ++lane) add(lane);
  lanes = sums;
}

/// x[i] = exp_f32(x[i] - shift), each added to lane i % kDotLanes: the rest of a softmax that fills
/// no vector.
void exponentials(float* x, std::size_t n, float shift, DotLanes& lanes);

// e^x = 2^n x e^r with n = rint(x / ln 2) and r = x - n ln 2. ln 2 comes in two parts, the first so
// short (13 bits) that n times it is exact; e^r is its Taylor polynomial of
// degree 7 on |r| <= ln(2) / 2, with the first two coefficients exact. 2^n is applied as two
// factors, the second of which rounds once where the result is subnormal.
inline constexpr float kExpLowest = -104.0F;  ///< bound below which e^x rounds to 0
inline constexpr float kExpLargest = 88.73F;  ///< bound above which e^x is infinite
inline constexpr float kInverseLn2 = 0x1.715476p+0F;
/// Adding and subtracting it rounds to an integer, to nearest even, and leaves that integer in the
/// low bits of the sum.
inline constexpr float kRoundToInteger = 0x1.8p23F;
inline constexpr float kLn2High = 0x1.62ep-1F;
inline constexpr float kLn2Low = 0x1.0bfbe8p-15F;
/// The coefficients of r^7, r^6 ... r^2.
inline constexpr float kExpCoefficients[] = {1.0F / 5040, 1.0F / 720, 1.0F / 120,
                                             1.0F / 24,   1.0F / 6,   1.0F / 2};

}  // namespace ingot::inference
