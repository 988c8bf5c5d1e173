#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "formats/bfloat16.h"
#include "formats/float8.h"
#include "quantize/scheme.h"

namespace ingot::quantize {

/// The value of a code under a scale. The explicit NaN keeps the result independent of which NaN
/// this processor's multiplication invents or passes on.
inline float scaled_e4m3(std::uint8_t code, float scale) {
  const float product = formats::kE4m3Values[code] * scale;
  if (!std::isnan(product)) return product;
  return std::bit_cast<float>(0x7FC00000U | (static_cast<std::uint32_t>(code & 0x80U) << 24));
}

/// `n` codes that share a scale.
inline void cast_segment(const std::byte* codes, std::size_t n, float scale, std::byte* out) {
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint16_t word =
        formats::bf16_from_float(scaled_e4m3(std::to_integer<std::uint8_t>(codes[i]), scale));
    std::memcpy(out + 2 * i, &word, sizeof word);
  }
}

/// Adds the NaN codes among `n` codes, the first of which is element `position` of the run.
inline void count_nan_codes(const std::byte* codes, std::size_t n, std::size_t position,
                            DecodeFaults& faults) {
  for (std::size_t i = 0; i < n; ++i) {
    if ((std::to_integer<std::uint8_t>(codes[i]) & 0x7FU) != formats::kE4m3Nan) continue;
    if (faults.nan_codes++ == 0) faults.first_nan = position + i;
  }
}

}  // namespace ingot::quantize
