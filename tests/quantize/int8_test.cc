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

int signed_code(const Coded& coded, std::size_t row, std::size_t col) {
  return static_cast<std::int8_t>(coded.code(row, col));
}

TEST(Int8, EncodesTheDocumentedRow) {
  Matrix matrix(1, 2);
  matrix.values = {1.0F, -0.5F};
  for_each_target([&] {
    const Coded coded = encode(SchemeId::kInt8Channel, matrix);
    EXPECT_NEAR(coded.effective[0], 0.00787402, 1e-8);
    EXPECT_EQ(signed_code(coded, 0, 0), 127);
    EXPECT_EQ(signed_code(coded, 0, 1), -64);
  });
}

TEST(Int8, TiesGoToTheEvenCode) {
  Matrix matrix(1, 33);
  for (int i = 0; i < 32; ++i) {
    matrix.values[static_cast<std::size_t>(i)] = static_cast<float>(i - 16) + 0.5F;
  }
  matrix.values[32] = 127.0F;  // makes the scale 1
  for_each_target([&] {
    const Coded coded = encode(SchemeId::kInt8Channel, matrix);
    EXPECT_EQ(coded.effective[0], 1.0F);
    for (std::size_t i = 0; i < 32; ++i) {
      const int low = static_cast<int>(i) - 16;
      EXPECT_EQ(signed_code(coded, 0, i), low % 2 == 0 ? low : low + 1) << i;
    }
  });
}

TEST(Int8, ZerosHaveTheSmallestScale) {
  Matrix matrix(2, 3);
  matrix.values = {0, -0.0F, 0, 0, 1e-8F, 0};
  for_each_target([&] {
    const Coded rows = encode(SchemeId::kInt8Channel, matrix);
    EXPECT_EQ(rows.effective, std::vector<float>(2, 0x1p-23F));
    const Coded block = encode(SchemeId::kInt8Block, matrix);
    EXPECT_EQ(block.effective, std::vector<float>(1, 0x1p-23F));
    for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(block.byte(i), 0);
  });
}

TEST(Int8, BlocksHaveTheScaleOfTheirLargestMagnitude) {
  const Matrix matrix = random_matrix(200, 300, Shape::kHeavy, 6);
  for_each_target([&] {
    const Coded coded = encode(SchemeId::kInt8Block, matrix);
    ASSERT_EQ(coded.effective.size(), 6U);
    float amax = 0;
    for (std::size_t r = 128; r < 200; ++r) {
      for (std::size_t c = 256; c < 300; ++c) {
        amax = std::max(amax, std::fabs(matrix.values[r * 300 + c]));
      }
    }
    EXPECT_EQ(coded.effective[5], amax / 127.0F);
  });
}

TEST(Int8, NeverEmitsMinus128ButReadsIt) {
  for (const AwkwardMatrix& awkward : awkward_matrices(4, 70)) {
    for (const SchemeId id : {SchemeId::kInt8Channel, SchemeId::kInt8Block}) {
      for_each_target([&] {
        const Coded coded = encode(id, awkward.matrix);
        for (std::size_t i = 0; i < coded.weight.size(); ++i) ASSERT_NE(coded.byte(i), 0x80);
      });
    }
  }
  const std::vector<std::byte> code(40, std::byte{0x80});
  const std::vector<float> scale{0.5F};
  const EncodedRows run{.weight = code.data(),
                        .rows = 1,
                        .cols = 40,
                        .scales = scale,
                        .rows_per_matrix = 1,
                        .scale_cols = 1,
                        .block_rows = 1,
                        .block_cols = 40};
  for_each_target([&] {
    Matrix out(1, 40);
    find_scheme(SchemeId::kInt8Channel)->decode(run, out.mutable_view());
    EXPECT_EQ(out.values, std::vector<float>(40, -64.0F));
  });
}

TEST(Int8, LargestFloatDoesNotDecodeToInfinity) {
  Matrix matrix(1, 2);
  matrix.values = {std::numeric_limits<float>::max(), -std::numeric_limits<float>::max()};
  for_each_target([&] {
    const Matrix decoded = decode(encode(SchemeId::kInt8Channel, matrix));
    EXPECT_NEAR(decoded.values[0] / matrix.values[0], 1.0F, 0.01F);
    EXPECT_NEAR(decoded.values[1] / matrix.values[1], 1.0F, 0.01F);
  });
}

}  // namespace
}  // namespace ingot::quantize
