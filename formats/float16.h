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

}  // namespace ingot::formats
