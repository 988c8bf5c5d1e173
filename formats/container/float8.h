#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace ingot::formats {

/// Magnitude bits of the only NaN that E4M3FN has (with either sign); there are no infinities.
inline constexpr std::uint8_t kE4m3Nan = 0x7F;
/// Magnitude bits of the largest E4M3FN value, 448.
inline constexpr std::uint8_t kE4m3Largest = 0x7E;

/// The value of an E4M3FN code (sign, 4 exponent bits of bias 7, 3 mantissa bits).
/// Source: docs/formats.md, "FP8".
constexpr float float_from_e4m3(std::uint8_t code) {
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80U) << 24;
  const std::uint32_t magnitude = code & 0x7FU;
  if (magnitude == kE4m3Nan) return std::bit_cast<float>(sign | 0x7FC00000U);
  if (magnitude < 8) {  // subnormal: a multiple of 2^-9
    const float value = static_cast<float>(magnitude) * 0x1p-9F;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
  }
  // The exponent field moves from bias 7 to bias 127.
  return std::bit_cast<float>(sign | ((magnitude << 20) + (120U << 23)));
}

namespace detail {
constexpr std::array<float, 256> make_e4m3_values() {
  std::array<float, 256> values{};
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = float_from_e4m3(static_cast<std::uint8_t>(i));
  }
  return values;
}
}  // namespace detail

/// float_from_e4m3 of every code.
inline constexpr std::array<float, 256> kE4m3Values = detail::make_e4m3_values();

/// Rounds to the nearest E4M3FN code, ties to even, saturating at 448 (infinities too). A NaN
/// becomes the NaN code of its sign; values that round to zero keep their sign. Source:
/// docs/formats.md, "FP8".
constexpr std::uint8_t e4m3_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 24) & 0x80U;
  std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<std::uint8_t>(sign | kE4m3Nan);
  std::uint32_t code = 0;
  if (magnitude <
      (121U << 23)) {  // below 2^-6: count multiples of 2^-9, of which eight are the first normal
    const float scaled = std::bit_cast<float>(magnitude) * 512.0F;
    code = static_cast<std::uint32_t>(scaled);
    const float rest = scaled - static_cast<float>(code);
    if (rest > 0.5F || (rest == 0.5F && (code & 1U) != 0)) ++code;
  } else {
    magnitude += 0x7FFFFU + ((magnitude >> 20) & 1U);
    code = (magnitude >> 20) - (120U << 3);
    if (code > kE4m3Largest) code = kE4m3Largest;
  }
  return static_cast<std::uint8_t>(sign | code);
}

/// The one E8M0 code that is not a number.
inline constexpr std::uint8_t kE8m0Nan = 0xFF;

/// The value of an E8M0 code, 2^(code - 127); code 0xFF is NaN. Code 0 is a subnormal F32.
constexpr float float_from_e8m0(std::uint8_t code) {
  if (code == kE8m0Nan) return std::bit_cast<float>(0x7FC00000U);
  if (code == 0) return std::bit_cast<float>(0x00400000U);
  return std::bit_cast<float>(static_cast<std::uint32_t>(code) << 23);
}

/// True if an F32 scale has an E8M0 code, that is, if it is one of 2^-127 ... 2^127.
constexpr bool is_e8m0_value(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (bits == 0x00400000U) return true;
  return (bits & 0x807FFFFFU) == 0 && bits != 0 && bits != 0x7F800000U;
}

}  // namespace ingot::formats
