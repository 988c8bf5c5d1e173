#pragma once

// A group of INT4 codes as the search for its scale sees it, and the numbers that both twins share.

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "formats/container/bfloat16.h"
#include "quantize/coded_matrix.h"

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

inline constexpr std::size_t kInt4Steps = 41;

/// The numbers by which a search divides the reach of a group's values.
struct Int4Divisors {
  float first, step;
  [[nodiscard]] constexpr float at(std::size_t i) const {
    return first + static_cast<float>(i) * step;
  }
};
inline constexpr Int4Divisors kOfAmax = {7, 0.125F};  ///< divisors of the largest magnitude
inline constexpr Int4Divisors kOfRange = {8, 0.5F};   ///< divisors of the range, with zero points

inline constexpr std::uint8_t kLastInt4Code = 15;
inline constexpr float kInt4Codes = kLastInt4Code;  ///< steps from the least code to the largest

/// A scale as it is stored, and the code that means zero.
struct Int4Grid {
  float scale = 1;
  std::uint8_t zero = kInt4Zero;
};

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

/// The least and the largest of a group's values and 0, in its units.
struct Int4Range {
  float low = 0, high = 0;
  [[nodiscard]] float width() const { return high - low; }
  /// Number of codes between zero and either end under a scale in units, at most 2^21.
  [[nodiscard]] float codes_below(float scale) const { return rounded(-low * (1 / scale)); }
  [[nodiscard]] float codes_above(float scale) const { return rounded(high * (1 / scale)); }

 private:
  static float rounded(float y) { return (y + kIntegers) - kIntegers; }
};

/// The first and the last zero point that are tried under a scale in units: others cut off more on
/// one side, and no less on the other.
struct Int4Zeros {
  Int4Zeros(const Int4Range& range, float scale) {
    const float below = range.codes_below(scale), above = range.codes_above(scale);
    first = static_cast<int>(std::clamp(std::min(below, kInt4Codes - above), 0.0F, kInt4Codes));
    last = static_cast<int>(std::min(below, kInt4Codes));
  }
  int first, last;
};

/// The grid of the search kAmax.
inline Int4Grid int4_grid_by_range(const Int4Range& range, float unit) {
  const float scale = stored_int4_scale(range.width() / kInt4Codes / unit);
  const float below = range.codes_below(scale * unit);
  return {scale, static_cast<std::uint8_t>(std::min(below, kInt4Codes))};
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
