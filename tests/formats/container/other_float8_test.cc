#include "formats/container/other_float8.h"

#include "formats/container/float16.h"
#include "tests/support/test.h"

namespace ingot::formats {
namespace {

bool is_same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

// An E5M2 code is the upper byte of the half-precision word of its value.
TEST(OtherFloat8, E5m2IsTheUpperByteOfF16) {
  const std::array<float, 256> values = float8_values(kFloat8Kinds[0]);
  for (unsigned code = 0; code < 256; ++code) {
    const float half = float_from_f16(static_cast<std::uint16_t>(code << 8));
    if (std::isnan(half)) {
      EXPECT_TRUE(std::isnan(values[code])) << code;
      EXPECT_EQ(std::signbit(values[code]), (code & 0x80U) != 0) << code;
    } else {
      EXPECT_TRUE(is_same(values[code], half)) << code;
    }
  }
}

TEST(OtherFloat8, FnuzIsAsItIsDefined) {
  for (const Float8Kind& kind : {kFloat8Kinds[1], kFloat8Kinds[2]}) {
    const std::array<float, 256> values = float8_values(kind);
    const int bits = static_cast<int>(kind.mantissa_bits), bias = static_cast<int>(kind.bias);
    for (int code = 0; code < 256; ++code) {
      if (code == 0x80) {
        EXPECT_TRUE(std::isnan(values[0x80]));
        continue;
      }
      const int exponent = (code & 0x7F) >> bits, mantissa = code & ((1 << bits) - 1);
      const double magnitude = exponent == 0
                                   ? std::ldexp(mantissa, 1 - bias - bits)
                                   : std::ldexp(mantissa + (1 << bits), exponent - bias - bits);
      EXPECT_EQ(values[static_cast<std::size_t>(code)], code < 0x80 ? magnitude : -magnitude);
    }
    EXPECT_FALSE(std::signbit(values[0]));
  }
  EXPECT_EQ(float_from_float8(kFloat8Kinds[1], 0x7F), 240);
  EXPECT_EQ(float_from_float8(kFloat8Kinds[2], 0x7F), 57344);
}

}  // namespace
}  // namespace ingot::formats
