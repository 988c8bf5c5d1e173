// Products of quantized activations: every SIMD target gives the bits of the specification, and the
// specification the result of integers and doubles from the same codes.

#include "inference/kernels/quantized/quantized_matmul.h"

#include "formats/container/float8.h"
#include "inference/kernels/quantized/quantized_task.h"
#include "quantize/kernels/codes.h"
#include "quantize/scheme.h"
#include "tests/inference/kernels/stored_matrix.h"
#include "tests/quantize/each_target.h"
#include "tests/support/test.h"

namespace ingot::inference {

using formats::CodeKind;
using formats::SchemeId;
using quantize::for_each_target;

// Activations become codes by the rules of the reference (model reference, 8.2, 8.5, 8.6).

namespace {

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
  EXPECT_EQ(quantize::E2m1::value(x.codes[0]), 6.0F);
  EXPECT_EQ(quantize::E2m1::value(x.codes[1]), 3.0F);
  EXPECT_EQ(quantize::E2m1::value(x.codes[2]), -0.5F);
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

// The codes that quantize's encoder of the same scheme stores without a search.
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
        {.values = {values.data(), 1, 32, 32},
         .block_rows = 1,
         .block_cols = 32,
         .options = {.search = quantize::ScaleSearch::kAmax}},
        {.weight = codes.data(), .weight_stride = 16, .scales = scale.data(), .scale_stride = 1});
    const QuantizedRows x =
        quantized(values, {.code = CodeKind::kE2m1, .group = 32, .power_of_two = true});
    EXPECT_EQ(x.scales[0], formats::float_from_e8m0(std::to_integer<std::uint8_t>(scale[0])));
    for (std::size_t i = 0; i < 32; ++i) {
      EXPECT_EQ(quantize::E2m1::value(x.codes[i]),
                quantize::E2m1::value(quantize::code_at<4>(codes.data(), i)));
    }
  }
}

/// How activations may meet a scheme: their groups in columns.
std::vector<std::size_t> groups_for(const StoredShape& shape) {
  if (shape.scheme == SchemeId::kNvfp4) return {16};
  if (shape.scheme == SchemeId::kMxfp4 || shape.scheme == SchemeId::kMxfp8) return {32};
  return {0, 128, 64, 20};
}

QuantizedRows rows_for(const StoredShape& shape, std::size_t rows, std::size_t group,
                       Contents contents, std::mt19937& random) {
  const CodeKind code = formats::scheme_facts(shape.scheme).code;
  QuantizedRows x{.rows = rows, .cols = shape.cols, .code = code};
  x.group = group == 0 ? shape.cols : group;
  x.groups = (x.cols + x.group - 1) / x.group;
  for (std::size_t i = 0; i < rows * x.cols; ++i) {
    auto bits = static_cast<std::uint8_t>(random());
    if (code == CodeKind::kE2m1) bits &= 15;
    if (code == CodeKind::kE4m3 && contents == Contents::kOrdinary && (bits & 0x7F) == 0x7F) {
      bits = 0x40;
    }
    x.codes.push_back(bits);
  }
  for (std::size_t i = 0; i < rows * x.groups; ++i) {
    x.scales.push_back(std::ldexp(1.0F + static_cast<float>(random() % 1000) / 1000, -9));
  }
  return x;
}

double value_of(CodeKind kind, std::uint8_t code) {
  switch (kind) {
    case CodeKind::kInt8:
      return static_cast<std::int8_t>(code);
    case CodeKind::kE4m3:
      return double{formats::kE4m3Values[code]};
    case CodeKind::kE2m1:
      return double{quantize::E2m1::value(code)};
    default:  // of weights whose activations stay as they are
      break;
  }
  return NAN;
}

double weight_code_value(const CodedMatrix& w, CodeKind kind, std::size_t row, std::size_t col) {
  const std::byte* codes = w.codes + row * w.row_bytes;
  if (kind != CodeKind::kE2m1) return value_of(kind, std::to_integer<std::uint8_t>(codes[col]));
  const auto both = std::to_integer<unsigned>(codes[col / 2]);
  return value_of(kind, static_cast<std::uint8_t>(col % 2 == 0 ? both & 15U : both >> 4U));
}

double weight_scale(const CodedMatrix& w, std::size_t row, std::size_t col) {
  return double{w.scale(w.group(row, col))};
}

std::vector<StoredShape> quantized_shapes(std::size_t rows, std::size_t cols) {
  std::vector<StoredShape> shapes;
  for (const StoredShape& shape : stored_shapes(rows, cols)) {
    if (shape.scheme == SchemeId::kInt4Group) continue;  // never with quantized activations
    if (formats::scheme_facts(shape.scheme).quantized) shapes.push_back(shape);
  }
  return shapes;
}

std::vector<float> product(const QuantizedRows& x, const CodedMatrix& w, const StaticInt8& fixed,
                           std::size_t threads = 1) {
  std::vector<float> y(x.rows * w.rows, -1.0F);
  quantized_matmul(x, w, fixed, {y.data(), x.rows, w.rows, w.rows}, threads);
  return y;
}

TEST(QuantizedMatmul, EqualsDoubleArithmeticOverTheSameCodes) {
  std::mt19937 random(1);
  for (const std::size_t cols : {64U, 130U, 384U}) {
    for (const StoredShape& shape : quantized_shapes(7, cols)) {
      const StoredMatrix matrix(shape, Contents::kOrdinary, random);
      for (const std::size_t group : groups_for(shape)) {
        const QuantizedRows x = rows_for(shape, 3, group, Contents::kOrdinary, random);
        const std::vector<float> y = product(x, matrix.view, {});
        for (std::size_t m = 0; m < 3; ++m) {
          for (std::size_t n = 0; n < 7; ++n) {
            double sum = 0, magnitude = 0;
            for (std::size_t k = 0; k < cols; ++k) {
              const double term = value_of(x.code, x.codes[m * cols + k]) *
                                  weight_code_value(matrix.view, x.code, n, k) *
                                  double{x.scales[m * x.groups + k / x.group]} *
                                  weight_scale(matrix.view, n, k);
              sum += term;
              magnitude += std::abs(term);
            }
            ASSERT_NEAR(double{y[m * 7 + n]}, sum, 1e-6 * magnitude) << matrix.name() << group;
          }
        }
      }
    }
  }
}

TEST(QuantizedMatmul, EveryTargetGivesTheBitsOfTheSpecification) {
  std::mt19937 random(2);
  for (const std::size_t cols : {2U, 15U, 16U, 18U, 48U, 64U, 80U, 128U, 200U, 256U, 530U}) {
    for (const StoredShape& shape : quantized_shapes(1 + random() % 14, cols)) {
      for (const Contents contents : {Contents::kOrdinary, Contents::kAnything}) {
        const StoredMatrix matrix(shape, contents, random);
        for (const std::size_t group : groups_for(shape)) {
          const QuantizedRows x = rows_for(shape, 1 + random() % 5, group, contents, random);
          QuantizedTask task{.w = matrix.view, .x = &x, .fixed = {}};
          task.columns = scaled_columns(x, matrix.view);
          std::vector<float> wanted(x.rows * matrix.view.rows);
          task.y = {wanted.data(), x.rows, matrix.view.rows, matrix.view.rows};
          scalar::run_quantized_matmul(task, 0, matrix.view.rows);
          for_each_target([&] {
            EXPECT_TRUE(same_bits(product(x, matrix.view, {}), wanted))
                << matrix.name() << ", groups of " << group << ", " << x.rows << " rows";
          });
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(QuantizedMatmul, Int8SumsAreExactAtTheLongestRows) {
  std::mt19937 random(3);
  constexpr std::size_t kCols = 18432;
  const StoredShape shape{SchemeId::kInt8Channel, 5, kCols, 1, kCols};
  StoredMatrix matrix(shape, Contents::kOrdinary, random);
  QuantizedRows x = rows_for(shape, 2, 0, Contents::kOrdinary, random);
  for (std::size_t k = 0; k < kCols; ++k) {
    x.codes[k] = static_cast<std::uint8_t>(k % 3 == 0 ? 127 : 0x81);  // 127 and -127
    matrix.codes[k] = static_cast<std::byte>(k % 3 == 0 ? 127 : 0x81);
  }
  for_each_target([&] {
    const std::vector<float> y = product(x, matrix.view, {});
    for (std::size_t m = 0; m < 2; ++m) {
      for (std::size_t n = 0; n < 5; ++n) {
        std::int64_t sum = 0;
        for (std::size_t k = 0; k < kCols; ++k) {
          sum +=
              std::int64_t{static_cast<std::int8_t>(x.codes[m * kCols + k])} *
              std::int64_t{static_cast<std::int8_t>(matrix.codes[n * matrix.view.row_bytes + k])};
        }
        EXPECT_EQ(y[m * 5 + n],
                  static_cast<float>(sum) *
                      (x.scales[m] * static_cast<float>(weight_scale(matrix.view, n, 0))));
      }
    }
  });
}

TEST(QuantizedMatmul, StaticInt8AddsItsBiasBeforeScaling) {
  std::mt19937 random(4);
  const StoredShape shape{SchemeId::kInt8Channel, 6, 70, 1, 70};
  const StoredMatrix matrix(shape, Contents::kOrdinary, random);
  const QuantizedRows x = rows_for(shape, 2, 0, Contents::kOrdinary, random);
  const std::vector<std::int32_t> bias = {0, 5, -100000, 7, INT32_MAX, INT32_MIN};
  const std::vector<float> deq = {1.0F, 0.5F, 0.01F, 2.0F, 1e-9F, 1e-9F};
  for_each_target([&] {
    const auto y = product(x, matrix.view, {.quant_bias = bias.data(), .deq_scale = deq.data()});
    const auto unscaled = product(x, matrix.view, {.quant_bias = bias.data()});
    for (std::size_t m = 0; m < 2; ++m) {
      for (std::size_t n = 0; n < 6; ++n) {
        std::int64_t sum = bias[n];
        for (std::size_t k = 0; k < 70; ++k) {
          sum += static_cast<std::int64_t>(value_of(x.code, x.codes[m * 70 + k]) *
                                           weight_code_value(matrix.view, x.code, n, k));
        }
        EXPECT_EQ(y[m * 6 + n], static_cast<float>(sum) * deq[n]);
        EXPECT_EQ(unscaled[m * 6 + n],
                  static_cast<float>(sum) *
                      (x.scales[m] * static_cast<float>(weight_scale(matrix.view, n, 0))));
      }
    }
  });
}

TEST(QuantizedMatmul, RowsIgnoreThreadsAndNeighbours) {
  std::mt19937 random(5);
  for (const StoredShape& shape : quantized_shapes(700, 640)) {
    if (shape.first_row != 0) continue;
    const StoredMatrix matrix(shape, Contents::kOrdinary, random);
    QuantizedRows x = rows_for(shape, 4, groups_for(shape)[0], Contents::kOrdinary, random);
    const std::vector<float> all = product(x, matrix.view, {});
    EXPECT_TRUE(same_bits(product(x, matrix.view, {}, 3), all)) << matrix.name();
    x.rows = 1;
    const std::vector<float> first = product(x, matrix.view, {}, 2);
    EXPECT_TRUE(same_bits(first, {all.begin(), all.begin() + 700})) << matrix.name();
  }
}

TEST(QuantizedMatmul, NoRowsAndNoColumnsAreLegal) {
  std::mt19937 random(6);
  const StoredMatrix matrix({SchemeId::kInt8Channel, 3, 8, 1, 8}, Contents::kOrdinary, random);
  const QuantizedRows none{.rows = 0, .cols = 8, .group = 8, .groups = 1};
  EXPECT_TRUE(product(none, matrix.view, {}).empty());
}

}  // namespace

}  // namespace ingot::inference
