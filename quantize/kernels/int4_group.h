#pragma once

// A group of INT4 codes as the search for its scale sees it, and the numbers that both twins share.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "formats/container/bfloat16.h"

namespace ingot::quantize {

inline constexpr std::size_t kInt4Lanes = 16;
/// The last place of a sum with it is that of integers, with room on both sides.
inline constexpr float kIntegers = 0x1.8p23F;

/// One group. Its values are in units in which amax is a number from 1 to 2.
struct Int4Group {
  const float* values = nullptr;
  const float* weights = nullptr;  ///< null: all 1
  std::size_t n = 0;               ///< a multiple of kInt4Lanes, with zeros at the end
  float amax = 0;                  ///< largest magnitude of the values as they are, above zero
  float unit = 1;                  ///< a power of two, the factor of the values
  // Room for as many.
  std::int16_t* magnitudes = nullptr;
  float* large = nullptr;
};

inline constexpr std::size_t kInt4Steps = 41;  // steps from 7 to 7 + 40 / 8
inline constexpr float kInt4Step = 0.125F;
inline constexpr float kSmallestInt4Scale = 0x1p-133F;
inline constexpr float kLargestInt4Scale = 0x1.FEp127F;

/// A scale above zero as it is stored.
inline float stored_int4_scale(float scale) {
  return std::clamp(formats::float_from_bf16(formats::bf16_from_float(scale)), kSmallestInt4Scale,
                    kLargestInt4Scale);
}

/// The power of two that brings amax, above zero, to 1 ... 2, as far as FP32 has it.
inline float int4_unit(float amax) {
  const std::uint32_t exponent = std::bit_cast<std::uint32_t>(amax) >> 23;
  const std::uint32_t wanted = exponent >= 253 ? 1 : 254 - exponent;
  return std::bit_cast<float>(std::min(wanted, 254U) << 23);
}

/// The scale that fits the codes best, from the sums of x q and q^2 in units; 0: there is none.
inline float fitted_int4_scale(float products, float squares, float unit) {
  const float fitted = products / squares / unit;
  if (!std::isfinite(fitted) || fitted == 0) return 0;
  return std::copysign(stored_int4_scale(std::fabs(fitted)), fitted);
}

inline float folded(std::array<float, kInt4Lanes> sums) {
  for (std::size_t half = kInt4Lanes / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

}  // namespace ingot::quantize
