#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "formats/container/float8.h"
#include "quantize/kernels/e2m1.h"
#include "quantize/scheme.h"

namespace ingot::quantize {

/// code x scale. The explicit NaN keeps the result independent of which NaN this processor's
/// multiplication invents or passes on.
inline float scaled(float code, float scale) {
  const float product = code * scale;
  if (!std::isnan(product)) return product;
  return std::bit_cast<float>(0x7FC00000U | (std::bit_cast<std::uint32_t>(code) & 0x80000000U));
}

inline float scaled_e4m3(std::uint8_t code, float scale) {
  return scaled(formats::kE4m3Values[code], scale);
}

inline float scaled_int8(std::uint8_t code, float scale) {
  return scaled(static_cast<float>(static_cast<std::int8_t>(code)), scale);
}

inline float scaled_e2m1(std::uint8_t code, float scale) {
  return scaled(float_from_e2m1(code), scale);
}

/// The zero point of INT4 codes without one.
inline constexpr std::uint8_t kInt4Zero = 8;

inline float scaled_int4(std::uint8_t code, std::uint8_t zero, float scale) {
  return scaled(static_cast<float>(int{code} - int{zero}), scale);
}

/// The zero point of the group whose scale this is.
inline std::uint8_t zero_code(const EncodedRows& in, const float* scale) {
  return in.zeros.empty() ? kInt4Zero
                          : in.zeros[static_cast<std::size_t>(scale - in.scales.data())];
}

/// Adds the NaN codes among `n` E4M3 codes, the first of which is element `position` of the run.
inline void count_nan_codes(const std::byte* codes, std::size_t n, std::size_t position,
                            DecodeFaults& faults) {
  for (std::size_t i = 0; i < n; ++i) {
    if ((std::to_integer<std::uint8_t>(codes[i]) & 0x7FU) != formats::kE4m3Nan) continue;
    if (faults.nan_codes++ == 0) faults.first_nan = position + i;
  }
}

}  // namespace ingot::quantize
