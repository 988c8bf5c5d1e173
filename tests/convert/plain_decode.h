#pragma once

#include "tests/convert/output_tensors.h"
#include "tests/support/test.h"

// The meaning of stored bytes, written from docs/formats.md as plainly as can be: for comparison
// with the program's decoders.

namespace ingot::testing {

inline float e4m3_by_formula(std::uint8_t code) {
  const int exponent = code >> 3 & 15;
  const int mantissa = code & 7;
  if ((code & 0x7F) == 0x7F) return std::numeric_limits<float>::quiet_NaN();
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return static_cast<float>((code & 0x80) != 0 ? -magnitude : magnitude);
}

inline float e4m3_value(std::uint8_t code) {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> all{};
    for (unsigned i = 0; i < all.size(); ++i)
      all[i] = e4m3_by_formula(static_cast<std::uint8_t>(i));
    return all;
  }();
  return values[code];
}

inline float e2m1_value(unsigned code) {
  constexpr std::array<float, 8> kValues = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  return (code & 8U) != 0 ? -kValues[code & 7U] : kValues[code & 7U];
}

inline float e8m0_value(std::uint8_t code) {
  return static_cast<float>(std::ldexp(1.0, code - 127));
}

inline float bf16_value(std::uint16_t word) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(word) << 16);
}

/// `value` of every code of a tensor, `n_each` of them in a code. A plain loop: tests are compiled
/// without inlining.
template <typename Code, std::size_t n_each = 1, typename Value>
std::vector<float> values_of_codes(const OutputTensor& tensor, const Value& value) {
  const std::vector<Code> codes = tensor.as<Code>();
  std::vector<float> values(codes.size() * n_each);
  const Code* code = codes.data();
  float* out = values.data();
  for (const float* end = out + values.size(); out != end; ++code)
    for (unsigned i = 0; i < n_each; ++i) *out++ = value(*code, i);
  return values;
}

/// Numbers of a scale tensor, of whatever dtype.
inline std::vector<float> scale_values(const OutputTensor& tensor) {
  switch (tensor.dtype) {
    case formats::DType::kF32:
      return tensor.as<float>();
    case formats::DType::kBf16:
      return values_of_codes<std::uint16_t>(tensor,
                                            [](auto word, auto) { return bf16_value(word); });
    case formats::DType::kF8E4M3:
      return values_of_codes<std::uint8_t>(tensor,
                                           [](auto code, auto) { return e4m3_value(code); });
    default:  // U8 and F8_E8M0
      return values_of_codes<std::uint8_t>(tensor,
                                           [](auto code, auto) { return e8m0_value(code); });
  }
}

/// The values of codes, before any scale. Packed codes: the low nibble first.
inline std::vector<float> code_values(const OutputTensor& tensor) {
  switch (tensor.dtype) {
    case formats::DType::kBf16:
    case formats::DType::kF32:
    case formats::DType::kF8E4M3:
      return scale_values(tensor);
    case formats::DType::kI8:
      return values_of_codes<std::int8_t>(tensor,
                                          [](int code, auto) { return static_cast<float>(code); });
    case formats::DType::kI32:  // eight INT4 codes, stored with 8 added
      return values_of_codes<std::uint32_t, 8>(tensor, [](auto word, unsigned i) {
        return static_cast<float>(word >> (4 * i) & 15U) - 8;
      });
    default:  // U8: two E2M1 codes
      return values_of_codes<std::uint8_t, 2>(
          tensor, [](unsigned byte, unsigned i) { return e2m1_value(byte >> (4 * i) & 15U); });
  }
}

}  // namespace ingot::testing
