#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "inference/kernels/matmul.h"

namespace ingot::inference {

/// The one NaN that kernels return, whichever NaN this processor's arithmetic made or passed on.
inline float one_nan(float value) {
  return std::isnan(value) ? std::bit_cast<float>(0x7FC00000U) : value;
}

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
  for (std::size_t k = 0; k < n; ++k) {
    const float product = a[k] * b[k];
    lanes[k % kDotLanes] = lanes[k % kDotLanes] + product;
  }
}

}  // namespace ingot::inference
