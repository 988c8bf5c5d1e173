#include "formats/container/float8.h"

#include "formats/container/bfloat16.h"
#include "formats/container/float16.h"
#include "tests/support/test.h"

namespace ingot::formats {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

double value_by_fields(int code) {
  const int exponent = code >> 3 & 15;
  const int mantissa = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(1.0 + mantissa / 8.0, exponent - 7);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

/// The nearest of all 127 magnitudes, the even code on a tie: by search.
std::uint8_t nearest_by_search(float value) {
  const auto sign = static_cast<std::uint8_t>(std::signbit(value) ? 0x80 : 0);
  if (std::isnan(value)) return sign | 0x7F;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude >= 448) return sign | 0x7E;
  int best = 0;
  for (int code = 1; code <= 0x7E; ++code) {
    const double distance = std::fabs(value_by_fields(code) - magnitude);
    const double best_distance = std::fabs(value_by_fields(best) - magnitude);
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) best = code;
  }
  return static_cast<std::uint8_t>(sign | best);
}

TEST(E4m3, EveryCodeHasTheValueOfItsFields) {
  for (int code = 0; code < 256; ++code) {
    const float value = float_from_e4m3(static_cast<std::uint8_t>(code));
    EXPECT_EQ(std::signbit(value), code >= 128) << code;
    if ((code & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(value)) << code;
      continue;
    }
    EXPECT_EQ(static_cast<double>(value), value_by_fields(code)) << code;
    EXPECT_EQ(std::bit_cast<std::uint32_t>(value),
              std::bit_cast<std::uint32_t>(kE4m3Values[static_cast<std::size_t>(code)]));
  }
}

TEST(E4m3, EveryCodeComesBackFromItsValue) {
  for (int code = 0; code < 256; ++code) {
    EXPECT_EQ(e4m3_from_float(float_from_e4m3(static_cast<std::uint8_t>(code))), code);
  }
}

TEST(E4m3, EncodesTheDocumentedVectors) {
  const std::pair<float, int> vectors[] = {
      {0.0F, 0x00},           {-0.0F, 0x80},     {0x1p-10F, 0x00},  {0x1.8p-10F, 0x01},
      {2.5F * 0x1p-9F, 0x02}, {0x1p-6F, 0x08},   {0.1F, 0x1D},      {1.0F / 3, 0x2B},
      {1.0625F, 0x38},        {1.1875F, 0x3A},   {17.0F, 0x58},     {240.0F, 0x77},
      {448.0F, 0x7E},         {449.0F, 0x7E},    {464.0F, 0x7E},    {464.1F, 0x7E},
      {480.0F, 0x7E},         {1e9F, 0x7E},      {kInfinity, 0x7E}, {-448.0F, 0xFE},
      {-kInfinity, 0xFE},     {-0x1p-11F, 0x80},
  };
  for (const auto& [value, code] : vectors) EXPECT_EQ(e4m3_from_float(value), code) << value;
  EXPECT_EQ(e4m3_from_float(std::bit_cast<float>(0x7FC00000U)), 0x7F);
  EXPECT_EQ(e4m3_from_float(std::bit_cast<float>(0xFFC00000U)), 0xFF);
}

TEST(E4m3, EncodesEveryBf16ToTheNearestCode) {
  for (std::uint32_t word = 0; word <= 0xFFFF; ++word) {
    const float value = float_from_bf16(static_cast<std::uint16_t>(word));
    ASSERT_EQ(e4m3_from_float(value), nearest_by_search(value)) << value;
  }
}

TEST(E4m3, EncodesFloatsAroundTiesToTheNearestCode) {
  for (int code = 0; code < 0x7E; ++code) {
    const auto tie = static_cast<float>((value_by_fields(code) + value_by_fields(code + 1)) / 2);
    for (const float value : {tie, std::nextafter(tie, 0.0F), std::nextafter(tie, kInfinity)}) {
      ASSERT_EQ(e4m3_from_float(value), nearest_by_search(value)) << value;
      ASSERT_EQ(e4m3_from_float(-value), nearest_by_search(-value)) << value;
    }
  }
}

TEST(E4m3, IsUsableInConstantExpressions) {
  static_assert(float_from_e4m3(0x38) == 1.0F);
  static_assert(e4m3_from_float(448.0F) == kE4m3Largest);
  static_assert(kE4m3Values[0x01] == 0x1p-9F);
  static_assert(float_from_e8m0(127) == 1.0F);
}

TEST(E8m0, EveryCodeIsAPowerOfTwo) {
  for (int code = 0; code < 255; ++code) {
    const float value = float_from_e8m0(static_cast<std::uint8_t>(code));
    EXPECT_EQ(static_cast<double>(value), std::ldexp(1.0, code - 127)) << code;
    EXPECT_TRUE(is_e8m0_value(value)) << code;
  }
  EXPECT_TRUE(std::isnan(float_from_e8m0(255)));
}

TEST(E8m0, DecodesTheDocumentedVectors) {
  EXPECT_EQ(float_from_e8m0(127), 1.0F);
  EXPECT_EQ(float_from_e8m0(128), 2.0F);
  EXPECT_EQ(float_from_e8m0(119), 0x1p-8F);
  EXPECT_EQ(float_from_e8m0(118), 0x1p-9F);
  EXPECT_EQ(float_from_e8m0(105), 0x1p-22F);
}

TEST(E8m0, OnlyItsOwnValuesAreRecognised) {
  for (const float scale : {1.00223219F, 0.00223214F, 0.00111607F, 2.2321e-7F, 3.0F, 0.0F, -0.0F,
                            -1.0F, kInfinity, std::bit_cast<float>(0x7FC00000U), 0x1p-128F,
                            0x1p-149F, std::numeric_limits<float>::max()}) {
    EXPECT_FALSE(is_e8m0_value(scale)) << scale;
  }
}

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
