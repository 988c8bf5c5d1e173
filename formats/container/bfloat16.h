#pragma once

#include <bit>
#include <cstdint>

namespace ingot::formats {

/// The value of a BF16 word: the upper half of an F32, so always exact.
constexpr float float_from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// Rounds to the nearest BF16, ties to even, in integer arithmetic (so independent of the rounding
/// mode). Magnitudes that round beyond the largest finite value become infinite. A NaN stays a NaN
/// of the same sign, made quiet, with the upper bits of its payload.
constexpr std::uint16_t bf16_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

/// Magnitude bits of a BF16 word from which on it is infinite (equal) or NaN (greater).
inline constexpr std::uint16_t kBf16Infinity = 0x7F80;
/// The NaN that our own arithmetic produces; the sign is or-ed in.
inline constexpr std::uint16_t kBf16QuietNan = 0x7FC0;

}  // namespace ingot::formats
