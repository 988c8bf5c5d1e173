#include "quantize/rows.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "formats/container/bfloat16.h"
#include "tests/quantize/awkward_matrices.h"
#include "tests/quantize/each_target.h"

namespace ingot::quantize {
namespace {

using formats::SchemeId;

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
      find_scheme(facts.id)->decode(coded.run(), decoded.mutable_view());
      float expected = 0;
      for (const float value : decoded.values) {
        if (std::isfinite(value)) expected = std::max(expected, std::fabs(value));
      }
      for_each_target([&] { EXPECT_EQ(encoded_amax(facts.id, coded.run()), expected); });
    }
  }
}

TEST(EncodedAmax, PassesOverNanCodesAndInfiniteProducts) {
  std::vector<std::byte> codes(64, std::byte{0x7F});
  codes[9] = std::byte{0xB8};  // -1
  codes[40] = std::byte{0x01};
  const std::vector<float> scales{3.0F, 2.0F};
  EncodedRows run{.weight = codes.data(),
                  .rows = 1,
                  .cols = 64,
                  .scales = scales,
                  .rows_per_matrix = 1,
                  .scale_cols = 2,
                  .block_rows = 1,
                  .block_cols = 32};
  for_each_target([&] { EXPECT_EQ(encoded_amax(SchemeId::kFp8Block, run), 3.0F); });
  codes[10] = std::byte{0x7E};
  const std::vector<float> huge{0x1p127F, 2.0F};
  run.scales = huge;
  for_each_target([&] { EXPECT_EQ(encoded_amax(SchemeId::kFp8Block, run), 0x1p127F); });
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
