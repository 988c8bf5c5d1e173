#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace ingot::quantize {

/// Magnitudes of the codes 0-7; bit 3 of a code is the sign. Source: docs/formats.md, "Quantized
/// schemes".
inline constexpr std::array<float, 8> kE2m1Magnitudes{0.0F, 0.5F, 1.0F, 1.5F,
                                                      2.0F, 3.0F, 4.0F, 6.0F};

/// The value of a code 0-15; code 8 is -0.
constexpr float float_from_e2m1(std::uint8_t code) {
  const float magnitude = kE2m1Magnitudes[code & 7U];
  return (code & 8U) != 0 ? -magnitude : magnitude;
}

/// The code of a magnitude: nearest, ties to the even code, 6 from 5 on.
constexpr std::uint8_t e2m1_from_magnitude(float a) {
  const int code = int{a > 0.25F} + int{a >= 0.75F} + int{a > 1.25F} + int{a >= 1.75F} +
                   int{a > 2.5F} + int{a >= 3.5F} + int{a > 5.0F};
  return static_cast<std::uint8_t>(code);
}

/// Returns one of the two codes of a byte; the code of the even column is the low nibble.
constexpr std::uint8_t nibble_in_byte(std::byte byte, std::size_t column) {
  return static_cast<std::uint8_t>(column % 2 == 0 ? std::to_integer<unsigned>(byte) & 15U
                                                   : std::to_integer<unsigned>(byte) >> 4);
}

}  // namespace ingot::quantize
