// Activations become codes by the rules of the reference (model reference, 8.2, 8.5, 8.6).

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "formats/container/float8.h"
#include "inference/kernels/quantized/quantized_matmul.h"
#include "quantize/kernels/e2m1.h"
#include "quantize/scheme.h"

namespace ingot::inference {
namespace {

using formats::CodeKind;

QuantizedRows quantized(std::vector<float> values, const ActivationFormat& format) {
  return quantize_activations({values.data(), 1, values.size(), values.size()}, format);
}

float e4m3_back(const QuantizedRows& x, std::size_t i) {
  return formats::kE4m3Values[x.codes[i]] * x.scales[i / x.group];
}

TEST(QuantizeActivations, Fp8GivesTheWorkedExamples) {
  std::vector<float> values(128, 0.0F);
  values[0] = 3.0F, values[1] = 1.0F, values[2] = 0.3F, values[3] = -0.01F;
  const QuantizedRows plain = quantized(values, {.code = CodeKind::kE4m3, .group = 128});
  EXPECT_NEAR(plain.scales[0], 0.00669642857F, 1e-9F);
  EXPECT_NEAR(e4m3_back(plain, 1), 0.9642857F, 1e-6F);
  EXPECT_NEAR(e4m3_back(plain, 2), 0.2946429F, 1e-6F);
  EXPECT_NEAR(e4m3_back(plain, 3), -0.0100446F, 1e-6F);
  const QuantizedRows rounded =
      quantized(values, {.code = CodeKind::kE4m3, .group = 128, .power_of_two = true});
  EXPECT_EQ(rounded.scales[0], 0x1p-7F);
  EXPECT_EQ(e4m3_back(rounded, 0), 3.0F);
  EXPECT_EQ(e4m3_back(rounded, 1), 1.0F);
  EXPECT_EQ(e4m3_back(rounded, 2), 0.3125F);
  EXPECT_EQ(e4m3_back(rounded, 3), -0.009765625F);
}

TEST(QuantizeActivations, Fp8HasAFloorUnderTheLargestMagnitude) {
  const std::vector<float> zeros(4, 0.0F);
  EXPECT_NEAR(quantized(zeros, {.code = CodeKind::kE4m3}).scales[0], 2.2321e-7F, 1e-11F);
  EXPECT_EQ(quantized(zeros, {.code = CodeKind::kE4m3, .power_of_two = true}).scales[0], 0x1p-22F);
  EXPECT_EQ(quantized(zeros, {.code = CodeKind::kE4m3}).codes, std::vector<std::uint8_t>(4, 0));
}

TEST(QuantizeActivations, APowerOfTwoStaysOne) {
  // 448 x 2^-3 over 448 is 2^-3 exactly, unless the constant's rounding pushes it up.
  const float amax = 448.0F * 0x1p-3F;
  const float step = 1.0F / 448.0F;
  const float scale = quantized({amax}, {.code = CodeKind::kE4m3, .power_of_two = true}).scales[0];
  EXPECT_EQ(scale, amax * step <= 0x1p-3F ? 0x1p-3F : 0x1p-2F);
}

TEST(QuantizeActivations, ALastGroupMayBeShorter) {
  std::vector<float> values(200, 1.0F);
  values[199] = 448.0F;
  const QuantizedRows x = quantized(values, {.code = CodeKind::kE4m3, .group = 128});
  ASSERT_EQ(x.groups, 2U);
  EXPECT_EQ(formats::kE4m3Values[x.codes[0]], 448.0F);
  EXPECT_NEAR(x.scales[1], 1.0F, 1e-6F);
}

TEST(QuantizeActivations, Int8RoundsTiesToEvenPerToken) {
  const QuantizedRows x = quantized({127.0F, -127.0F, 0.5F, 1.5F, -2.5F}, {});
  EXPECT_EQ(x.scales[0], 1.0F);
  EXPECT_EQ(x.codes, (std::vector<std::uint8_t>{127, 0x81, 0, 2, 0xFE}));
  const QuantizedRows zero = quantized({0.0F, -0.0F}, {});
  EXPECT_EQ(zero.scales[0], 1.0F);
  EXPECT_EQ(zero.codes, (std::vector<std::uint8_t>{0, 0}));
}

TEST(QuantizeActivations, StaticInt8ShiftsThenClamps) {
  const QuantizedRows x =
      quantized({1.0F, -1.0F, 100.0F, -100.0F}, {.input_scale = 0.5F, .input_offset = -10});
  EXPECT_EQ(x.scales[0], 0.5F);
  EXPECT_EQ(x.codes, (std::vector<std::uint8_t>{static_cast<std::uint8_t>(-8),
                                                static_cast<std::uint8_t>(-12), 127, 0x80}));
}

TEST(QuantizeActivations, StaticFp8Saturates) {
  const QuantizedRows x =
      quantized({1.0F, -1000.0F}, {.code = CodeKind::kE4m3, .input_scale = 2.0F});
  EXPECT_EQ(x.scales[0], 2.0F);
  EXPECT_EQ(formats::kE4m3Values[x.codes[0]], 0.5F);
  EXPECT_EQ(formats::kE4m3Values[x.codes[1]], -448.0F);
}

TEST(QuantizeActivations, Nvfp4HasBlockScalesUnderItsGlobal) {
  std::vector<float> values(32, 0.0F);
  values[0] = 1.2F, values[1] = 0.5F, values[2] = -0.1F;
  const float global = 6.0F / (6.0F * 448.0F);
  const QuantizedRows x =
      quantized(values, {.code = CodeKind::kE2m1, .group = 16, .input_scale = global});
  ASSERT_EQ(x.scales.size(), 2U);
  EXPECT_NEAR(x.scales[0], 0.196428571F, 1e-7F);
  EXPECT_EQ(quantize::float_from_e2m1(x.codes[0]), 6.0F);
  EXPECT_EQ(quantize::float_from_e2m1(x.codes[1]), 3.0F);
  EXPECT_EQ(quantize::float_from_e2m1(x.codes[2]), -0.5F);
  EXPECT_EQ(x.scales[1], 0.0F) << "a block of zeros";
  EXPECT_EQ(x.codes[20], 0);
}

TEST(QuantizeActivations, WhatIsNotFiniteGivesANanScale) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    for (const CodeKind code : {CodeKind::kInt8, CodeKind::kE4m3, CodeKind::kE2m1}) {
      const QuantizedRows x = quantized({1.0F, 2.0F, bad, 3.0F}, {.code = code, .group = 2});
      EXPECT_FALSE(std::isnan(x.scales[0]));
      EXPECT_TRUE(std::isnan(x.scales[1]));
    }
  }
}

// What quantize's encoder of the same scheme stores.
TEST(QuantizeActivations, Mxfp4AgreesWithTheWeightsEncoder) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const quantize::Scheme& scheme = *quantize::find_scheme(formats::SchemeId::kMxfp4);
  for (int round = 0; round < 200; ++round) {
    std::vector<float> values(32);
    const float size = std::ldexp(1.0F, static_cast<int>(random() % 40) - 20);
    for (float& value : values) value = normal(random) * size;
    std::vector<std::byte> codes(16), scale(1);
    scheme.encode(
        {.values = {values.data(), 1, 32, 32}, .block_rows = 1, .block_cols = 32},
        {.weight = codes.data(), .weight_stride = 16, .scales = scale.data(), .scale_stride = 1});
    const QuantizedRows x =
        quantized(values, {.code = CodeKind::kE2m1, .group = 32, .power_of_two = true});
    EXPECT_EQ(x.scales[0], formats::float_from_e8m0(std::to_integer<std::uint8_t>(scale[0])));
    for (std::size_t i = 0; i < 32; ++i) {
      EXPECT_EQ(quantize::float_from_e2m1(x.codes[i]),
                quantize::float_from_e2m1(quantize::e2m1_in_byte(codes[i / 2], i)));
    }
  }
}

}  // namespace
}  // namespace ingot::inference
