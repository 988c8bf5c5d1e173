#pragma once

#include <array>
#include <cmath>
#include <cstddef>

namespace ingot::quantize {

/// The E2M1 value nearest to a magnitude; of two as near, the smaller.
inline double nearest_e2m1(double magnitude) {
  constexpr std::array<double, 8> kValues{0, 0.5, 1, 1.5, 2, 3, 4, 6};
  std::size_t i = 0;
  while (i + 1 < 8 && magnitude > (kValues[i] + kValues[i + 1]) / 2) ++i;
  return kValues[i];
}

/// The values of positive E4M3 codes; ascending.
inline const std::array<double, 0x7F> kE4m3Magnitudes = [] {
  std::array<double, 0x7F> values{};
  for (int code = 0; code < 0x7F; ++code)
    values[static_cast<std::size_t>(code)] =
        code < 8 ? std::ldexp(code, -9) : std::ldexp(8 + (code & 7), (code >> 3) - 10);
  return values;
}();

/// The value of a positive E4M3 code.
inline double e4m3(int code) {
  return kE4m3Magnitudes[static_cast<std::size_t>(code)];
}

}  // namespace ingot::quantize
