#pragma once

#include <bit>
#include <cstdint>

namespace ingot::formats {

/// The value of an IEEE half-precision word; exact. A NaN keeps sign and payload.
constexpr float float_from_f16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t magnitude = bits & 0x7FFFU;
  // Subnormals count multiples of 2^-24. Signed and without branches, for the sake of vector units.
  const float count = static_cast<float>(static_cast<std::int32_t>(magnitude));
  const auto tiny = std::bit_cast<std::uint32_t>(count * 0x1p-24F);
  // The exponent of the others moves from bias 15 to bias 127; infinities and NaNs move twice, to
  // 255.
  const std::uint32_t normal =
      (magnitude << 13) + ((112U << 23) << static_cast<std::uint32_t>(magnitude >= 0x7C00U));
  const std::uint32_t is_tiny = 0U - static_cast<std::uint32_t>(magnitude < 0x400U);
  return std::bit_cast<float>(sign | (tiny & is_tiny) | (normal & ~is_tiny));
}

/// Rounds to the nearest half-precision word, ties to even. Magnitudes from 65520 on become
/// infinite; a NaN stays a NaN of the same sign, made quiet, with the upper bits of its payload.
constexpr std::uint16_t f16_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  // Above 0.5 floats are multiples of 2^-24, as subnormal halves are: the addition rounds. By masks
  // instead of branches, for the sake of vector units.
  const auto mask_of = [](bool condition) { return 0U - static_cast<std::uint32_t>(condition); };
  const std::uint32_t is_tiny = mask_of(magnitude < (113U << 23));
  const std::uint32_t is_nan = mask_of(magnitude > 0x7F800000U);
  const std::uint32_t tiny =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - (126U << 23);
  const std::uint32_t normal =
      ((magnitude + 0xFFFU + ((magnitude >> 13) & 1U)) >> 13) - (112U << 10);
  const std::uint32_t is_infinite = mask_of(magnitude >= 0x477FF000U);
  const std::uint32_t nan = 0x7E00U | ((magnitude >> 13) & 0x1FFU);
  const std::uint32_t number =
      (tiny & is_tiny) | (0x7C00U & is_infinite) | (normal & ~is_tiny & ~is_infinite);
  return static_cast<std::uint16_t>(sign | (nan & is_nan) | (number & ~is_nan));
}

}  // namespace ingot::formats
