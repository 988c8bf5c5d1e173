#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "tests/quantize/awkward_matrices.h"
#include "tests/quantize/each_target.h"

namespace ingot::quantize {
namespace {

using formats::SchemeId;

Matrix group_of(float amax) {
  Matrix matrix(1, 32);
  for (std::size_t i = 0; i < 32; ++i) matrix.values[i] = amax * static_cast<float>(i) / 31.0F;
  matrix.values[31] = -amax;
  return matrix;
}

/// By the definition: 127 + e - c, after a mantissa from 1.75 on has been rounded up.
int expected_byte(float amax, int largest_exponent) {
  if (amax == 0) return 127;
  int exponent = 0;
  const double mantissa = 2 * std::frexp(static_cast<double>(amax), &exponent);
  --exponent;
  if (mantissa >= 1.75) ++exponent;
  return std::min(std::max(127 + exponent - largest_exponent, 0), 254);
}

TEST(Mxfp, ScaleFollowsTheExponentRule) {
  std::vector<float> amaxes{0,
                            0x1p-149F,
                            0x1p-127F,
                            0x1.BFFFFEp-127F,
                            0x1.FFFFFCp-127F,
                            std::numeric_limits<float>::max()};
  for (int exponent = -126; exponent < 128; ++exponent) {
    for (const float mantissa : {1.0F, 1.5F, 1.7499999F, 1.75F, 1.9999999F}) {
      amaxes.push_back(std::ldexp(mantissa, exponent));
    }
  }
  for_each_target([&] {
    for (const float amax : amaxes) {
      const Coded fp4 = encode(SchemeId::kMxfp4, group_of(amax));
      ASSERT_EQ(std::to_integer<int>(fp4.scales[0]), expected_byte(amax, 2)) << amax;
      const Coded fp8 = encode(SchemeId::kMxfp8, group_of(amax));
      ASSERT_EQ(std::to_integer<int>(fp8.scales[0]), expected_byte(amax, 8)) << amax;
    }
  });
}

TEST(Mxfp, MagnitudesAboveTheLargestCodeSaturate) {
  Matrix matrix = group_of(0);
  matrix.values[3] = 1.7F;  // scale 2^-2: 6.8 becomes 6
  matrix.values[4] = -1.74F;
  for_each_target([&] {
    const Coded coded = encode(SchemeId::kMxfp4, matrix);
    EXPECT_EQ(coded.effective[0], 0.25F);
    EXPECT_EQ(coded.code(0, 3), 7);
    EXPECT_EQ(coded.code(0, 4), 15);
    EXPECT_EQ(decode(coded).values[3], 1.5F);
  });
}

TEST(Mxfp, RepresentableGroupsComeBackExactly) {
  Matrix matrix(4, 64);
  const float magnitudes[] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  for (std::size_t i = 0; i < matrix.values.size(); ++i) {
    const float sign = i / 8 % 2 == 0 ? 1.0F : -1.0F;
    matrix.values[i] =
        sign * magnitudes[i % 8] * std::ldexp(1.0F, static_cast<int>(i / 32) * 9 - 30);
  }
  for_each_target([&] {
    for (const SchemeId id : {SchemeId::kMxfp4, SchemeId::kMxfp8}) {
      EXPECT_EQ(decode(encode(id, matrix)).values, matrix.values);
    }
  });
}

TEST(Mxfp, LargestFloatsDoNotDecodeToInfinity) {
  for (const SchemeId id : {SchemeId::kMxfp4, SchemeId::kMxfp8}) {
    for (const float value : {std::numeric_limits<float>::max(), 0x1.FEp127F}) {
      Matrix matrix(1, 32);
      for (std::size_t i = 0; i < 32; ++i) matrix.values[i] = i % 2 == 0 ? value : -value / 3;
      for_each_target([&] {
        const Matrix decoded = decode(encode(id, matrix));
        for (const float x : decoded.values) EXPECT_TRUE(std::isfinite(x));
        EXPECT_GT(decoded.values[0], value / 2);
        EXPECT_LT(decoded.values[1], -value / 5);
      });
    }
  }
}

}  // namespace
}  // namespace ingot::quantize
