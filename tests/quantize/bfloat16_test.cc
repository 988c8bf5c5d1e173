#include "formats/container/bfloat16.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

#include "formats/container/float16.h"

namespace ingot::formats {
namespace {

TEST(BFloat16, EveryWordComesBackFromItsValue) {
  for (std::uint32_t i = 0; i <= 0xFFFF; ++i) {
    const auto word = static_cast<std::uint16_t>(i);
    const bool is_nan = (word & 0x7FFFU) > kBf16Infinity;
    const auto expected = static_cast<std::uint16_t>(is_nan ? word | 0x40U : word);
    ASSERT_EQ(bf16_from_float(float_from_bf16(word)), expected) << word;
  }
}

TEST(BFloat16, RoundsTiesToEvenBetweenAllNeighbours) {
  for (std::uint32_t word = 0; word < kBf16Infinity; ++word) {
    const std::uint32_t low = word << 16;
    const auto rounded = [&](std::uint32_t fraction) {
      return bf16_from_float(std::bit_cast<float>(low | fraction));
    };
    const auto even = static_cast<std::uint16_t>(word + (word & 1U));
    ASSERT_EQ(rounded(0x7FFF), word);
    ASSERT_EQ(rounded(0x8000), even);
    ASSERT_EQ(rounded(0x8001), word + 1);
    const auto negative = bf16_from_float(-std::bit_cast<float>(low | 0x8000U));
    ASSERT_EQ(negative, even | 0x8000U);
  }
}

TEST(BFloat16, LargestFloatBecomesInfinite) {
  EXPECT_EQ(bf16_from_float(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_EQ(bf16_from_float(-std::numeric_limits<float>::infinity()), 0xFF80);
}

TEST(BFloat16, NanStaysNanWithALostPayload) {
  EXPECT_EQ(bf16_from_float(std::bit_cast<float>(0x7F800001U)), 0x7FC0);
  EXPECT_EQ(bf16_from_float(std::bit_cast<float>(0xFFC12345U)), 0xFFC1);
}

TEST(Float16, EveryWordHasTheValueOfItsFields) {
  for (std::uint32_t i = 0; i <= 0xFFFF; ++i) {
    const float value = float_from_f16(static_cast<std::uint16_t>(i));
    const int exponent = static_cast<int>(i >> 10 & 31U);
    const int fraction = static_cast<int>(i & 1023U);
    ASSERT_EQ(std::signbit(value), (i >> 15) != 0) << i;
    if (exponent == 31) {
      ASSERT_EQ(std::isnan(value), fraction != 0) << i;
      ASSERT_EQ(std::isinf(value), fraction == 0) << i;
      continue;
    }
    const double expected =
        exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    ASSERT_EQ(std::fabs(static_cast<double>(value)), expected) << i;
  }
}

}  // namespace
}  // namespace ingot::formats
