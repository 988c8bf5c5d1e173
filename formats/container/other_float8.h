#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "formats/container/dtype.h"

namespace ingot::formats {

/// A kind of FP8 other than E4M3FN: a sign, exponent bits under a bias, and mantissa bits.
struct Float8Kind {
  DType dtype{};
  std::uint32_t mantissa_bits = 0;
  std::uint32_t bias = 0;
  /// True where, as in IEEE, the largest exponent holds infinities and NaNs. Else (FNUZ) the code
  /// 0x80 is the one NaN, and there is neither -0 nor an infinity.
  bool has_infinity = false;
};

inline constexpr std::array kFloat8Kinds = {
    Float8Kind{DType::kF8E5M2, 2, 15, true},
    Float8Kind{DType::kF8E4M3Fnuz, 3, 8, false},
    Float8Kind{DType::kF8E5M2Fnuz, 2, 16, false},
};

inline constexpr DTypeSet kOtherFloat8 = {DType::kF8E5M2, DType::kF8E4M3Fnuz, DType::kF8E5M2Fnuz};

/// The value of a code, exact. A NaN is quiet, with the sign of the code. Source: docs/formats.md,
/// "FP8".
constexpr float float_from_float8(const Float8Kind& kind, std::uint8_t code) {
  constexpr std::uint32_t kF32Bias = 127, kF32MantissaBits = 23, kQuietNan = 0x7FC00000U;
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80U) << 24;
  const std::uint32_t magnitude = code & 0x7FU;
  const std::uint32_t exponent = magnitude >> kind.mantissa_bits;
  const std::uint32_t mantissa = magnitude & ((1U << kind.mantissa_bits) - 1);
  if (!kind.has_infinity && code == 0x80U) return std::bit_cast<float>(sign | kQuietNan);
  if (kind.has_infinity && exponent == 0x7FU >> kind.mantissa_bits) {
    const std::uint32_t infinity =
        std::bit_cast<std::uint32_t>(std::numeric_limits<float>::infinity());
    return std::bit_cast<float>(sign | (mantissa == 0 ? infinity : kQuietNan));
  }
  if (exponent == 0) {  // subnormal: a multiple of the least value
    const std::uint32_t least = (kF32Bias + 1 - kind.bias - kind.mantissa_bits) << kF32MantissaBits;
    const float value = static_cast<float>(mantissa) * std::bit_cast<float>(least);
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
  }
  return std::bit_cast<float>(sign | (exponent + kF32Bias - kind.bias) << kF32MantissaBits |
                              mantissa << (kF32MantissaBits - kind.mantissa_bits));
}

/// float_from_float8 of every code.
constexpr std::array<float, 256> float8_values(const Float8Kind& kind) {
  std::array<float, 256> values{};
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = float_from_float8(kind, static_cast<std::uint8_t>(i));
  return values;
}

}  // namespace ingot::formats
