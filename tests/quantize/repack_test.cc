#include "quantize/repack.h"

#include "formats/container/bfloat16.h"
#include "quantize/rows.h"
#include "tests/quantize/awkward_matrices.h"
#include "tests/quantize/coded_matrix.h"
#include "tests/quantize/each_target.h"
#include "tests/support/test.h"

namespace ingot::quantize {
namespace {

using formats::SchemeId;

/// Rows of MXFP4 blocks with random codes and the scales 2^exponent.
Coded mxfp4_of(const std::vector<int>& exponents, std::size_t rows) {
  std::mt19937 random(2);
  Coded coded{.id = SchemeId::kMxfp4,
              .rows = rows,
              .cols = exponents.size() / rows * 32,
              .block_rows = 1,
              .block_cols = 32,
              .scale_cols = exponents.size() / rows};
  for (std::size_t i = 0; i < exponents.size() * 16; ++i) {
    coded.weight.push_back(static_cast<std::byte>(random()));
  }
  for (const int exponent : exponents) coded.effective.push_back(std::ldexp(1.0F, exponent));
  return coded;
}

struct Repacked {
  Coded coded;
  std::uint64_t kept = 0;
};

Repacked repack(const Coded& from, bool divides) {
  const float global = repacked_global(largest_mxfp4_scale(from.run()), divides);
  Repacked to{.coded = {.id = SchemeId::kNvfp4,
                        .rows = from.rows,
                        .cols = from.cols,
                        .block_rows = 1,
                        .block_cols = 16,
                        .scale_cols = from.scale_cols * 2,
                        .global = global,
                        .divides = divides}};
  to.coded.weight.resize(from.weight.size());
  to.coded.scales.resize(from.rows * to.coded.scale_cols);
  to.kept = repack_mxfp4_as_nvfp4(from.run(), global, divides, {},
                                  {.weight = to.coded.weight.data(),
                                   .weight_stride = from.cols / 2,
                                   .scales = to.coded.scales.data(),
                                   .scale_stride = to.coded.scale_cols});
  for (const std::byte& code : to.coded.scales) {
    const auto scale = static_cast<float>(stored_scale(formats::DType::kF8E4M3, &code));
    to.coded.effective.push_back(divides ? scale / global : scale * global);
  }
  return to;
}

TEST(Repack, KeepsValuesWithinSeventeenExponents) {
  for (const int top : {-110, -20, 0, 40, 127}) {
    for (const bool divides : {false, true}) {
      std::vector<int> exponents;
      for (int below = 0; below <= 17; ++below) exponents.push_back(std::max(top - below, -127));
      const Coded from = mxfp4_of(exponents, 2);
      for_each_target([&] {
        const Repacked to = repack(from, divides);
        EXPECT_EQ(to.kept, 36U) << top;
        EXPECT_TRUE(to.coded.weight == from.weight);
        EXPECT_EQ(decode(to.coded).values, decode(from).values);
        for (const std::byte scale : to.coded.scales) {
          EXPECT_NE(scale, std::byte{0});
          EXPECT_NE(scale, std::byte{0x7F});
        }
      });
    }
  }
}

TEST(Repack, EncodesAnewWhatLiesBelow) {
  const Coded from = mxfp4_of({0, -17, -18, -40}, 1);
  for (const bool divides : {false, true}) {
    const Repacked to = repack(from, divides);
    EXPECT_EQ(to.kept, 4U);
    const Matrix before = decode(from);
    const Matrix after = decode(to.coded);
    for (std::size_t i = 0; i < 128; ++i) {
      if (i < 64) {
        EXPECT_EQ(after.values[i], before.values[i]);
      }
      // The smallest scale left is 2^-17, whose largest step is twice that.
      EXPECT_LE(std::fabs(after.values[i] - before.values[i]), 0x1p-17F) << i;
    }
  }
}

TEST(Repack, ZeroBlocksDoNotDecideTheGlobal) {
  Coded from = mxfp4_of({90, 0, -17, 127}, 1);
  for (std::size_t i = 0; i < 16; ++i) {
    from.weight[i] = std::byte{0x08};  // 0 and -0
    from.weight[48 + i] = std::byte{0x80};
  }
  from.weight[16] = from.weight[32] = std::byte{0x21};
  EXPECT_EQ(largest_mxfp4_scale(from.run()), 1.0F);
  for (const bool divides : {false, true}) {
    const Repacked to = repack(from, divides);
    EXPECT_EQ(to.coded.global, divides ? 0x1p8F : 0x1p-8F);
    EXPECT_EQ(decode(to.coded).values, decode(from).values);
  }
}

TEST(Repack, GlobalScaleIsExactInBothConventions) {
  EXPECT_EQ(repacked_global(0, false), 1.0F);
  EXPECT_EQ(repacked_global(0, true), 1.0F);
  for (int exponent = -127; exponent <= 127; ++exponent) {
    const float scale = std::ldexp(1.0F, exponent);
    EXPECT_EQ(repacked_global(scale, false), std::ldexp(1.0F, exponent - 8));
    const float divisor = repacked_global(scale, true);
    EXPECT_EQ(divisor, std::ldexp(1.0F, std::min(8 - exponent, 127)));
  }
}

TEST(Repack, TensorOfZerosHasTheScaleOne) {
  Coded from = mxfp4_of({0, 5}, 1);
  for (std::byte& pair : from.weight) pair = std::byte{0};
  EXPECT_EQ(largest_mxfp4_scale(from.run()), 0.0F);
  const Repacked to = repack(from, false);
  EXPECT_EQ(to.coded.global, 1.0F);
  EXPECT_EQ(decode(to.coded).values, std::vector<float>(64, 0.0F));
}

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(Amax, IsTheLargestFiniteMagnitude) {
  for (const std::size_t cols : {1U, 5U, 16U, 100U, 1000U}) {
    for (AwkwardMatrix& awkward : awkward_matrices(3, cols)) {
      const float expected = largest_magnitude(awkward.matrix.values);
      for_each_target([&] { EXPECT_EQ(amax(awkward.matrix.view()), expected) << awkward.name; });
    }
  }
  Matrix matrix(1, 40);
  matrix.values[3] = -kInfinity;
  matrix.values[4] = kNan;
  for_each_target([&] { EXPECT_EQ(amax(matrix.view()), 0.0F); });
  matrix.values[39] = -2;
  for_each_target([&] {
    EXPECT_EQ(amax(matrix.view()), 2.0F);
    EXPECT_EQ(amax({}), 0.0F);
  });
}

TEST(Amax, LeavesOutWhatLiesBetweenTheRows) {
  Matrix matrix(3, 20);
  matrix.values[18] = 100;
  matrix.values[45] = -7;
  EXPECT_EQ(amax({.data = matrix.values.data(), .rows = 3, .cols = 18, .stride = 20}), 7.0F);
}

TEST(EncodedAmax, EqualsDecodedValuesForEveryScheme) {
  for (const formats::SchemeFacts& facts : formats::schemes()) {
    if (find_scheme(facts.id) == nullptr) continue;
    for (const AwkwardMatrix& awkward : awkward_matrices(5, 2080)) {
      SCOPED_TRACE(std::string(facts.name) + ", " + awkward.name);
      const Coded coded = encode(facts.id, awkward.matrix);
      Matrix decoded(coded.rows, coded.cols);
      decode(coded.run(), decoded.mutable_view());
      float expected = 0;
      for (const float value : decoded.values) {
        if (std::isfinite(value)) expected = std::max(expected, std::fabs(value));
      }
      for_each_target([&] { EXPECT_EQ(encoded_amax(coded.run()), expected); });
    }
  }
}

TEST(EncodedAmax, PassesOverNanCodesAndInfiniteProducts) {
  std::vector<std::byte> codes(64, std::byte{0x7F});
  codes[9] = std::byte{0xB8};  // -1
  codes[40] = std::byte{0x01};
  const std::vector<float> scales{3.0F, 2.0F};
  CodedMatrix run{.scheme = SchemeId::kFp8Block,
                  .codes = codes.data(),
                  .rows = 1,
                  .cols = 64,
                  .scales = scales,
                  .rows_per_matrix = 1,
                  .scale_cols = 2,
                  .block_rows = 1,
                  .block_cols = 32};
  for_each_target([&] { EXPECT_EQ(encoded_amax(run), 3.0F); });
  codes[10] = std::byte{0x7E};
  const std::vector<float> huge{0x1p127F, 2.0F};
  run.scales = huge;
  for_each_target([&] { EXPECT_EQ(encoded_amax(run), 0x1p127F); });
}

TEST(FirstNonfinite, FindsThePositionInRowOrder) {
  Matrix matrix(4, 33);
  EXPECT_FALSE(first_nonfinite(matrix.view()).has_value());
  matrix.values[3 * 33 + 1] = kNan;
  EXPECT_EQ(first_nonfinite(matrix.view()), 3U * 33 + 1);
  matrix.values[2 * 33 + 32] = -kInfinity;
  EXPECT_EQ(first_nonfinite(matrix.view()), 2U * 33 + 32);
  // The position counts the columns of the view, not its stride.
  EXPECT_EQ(first_nonfinite({.data = matrix.values.data(), .rows = 4, .cols = 30, .stride = 33}),
            3U * 30 + 1);
}

TEST(SettleNonfinite, GivesInfinitiesTheLargestMagnitudeOfTheirGroup) {
  Matrix matrix(4, 4);
  matrix.values = {kInfinity,  1,    -kInfinity, kNan,  //
                   -3,         0,    5,          kNan,  //
                   kInfinity,  kNan, 2,          2,     //
                   -kInfinity, kNan, 2,          2};
  Matrix whole = matrix;
  settle_nonfinite(matrix.mutable_view(), 2, 2);
  EXPECT_EQ(matrix.values, (std::vector<float>{3, 1, -5, 0, -3, 0, 5, 0, 0, 0, 2, 2, 0, 0, 2, 2}));
  settle_nonfinite(whole.mutable_view(), 0, 0);
  EXPECT_EQ(whole.values, (std::vector<float>{5, 1, -5, 0, -3, 0, 5, 0, 5, 0, 2, 2, -5, 0, 2, 2}));
}

TEST(RoundToBf16, RoundsValuesInPlaceWithinRows) {
  std::mt19937 random(4);
  Matrix matrix(3, 50);
  for (float& value : matrix.values)
    value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
  for_each_target([&] {
    Matrix rounded = matrix;
    round_to_bf16({.data = rounded.values.data(), .rows = 3, .cols = 47, .stride = 50});
    for (std::size_t i = 0; i < 150; ++i) {
      const float expected =
          i % 50 < 47 ? formats::float_from_bf16(formats::bf16_from_float(matrix.values[i]))
                      : matrix.values[i];
      ASSERT_EQ(bits_of(rounded.values[i]), bits_of(expected)) << i;
    }
  });
}

}  // namespace
}  // namespace ingot::quantize
