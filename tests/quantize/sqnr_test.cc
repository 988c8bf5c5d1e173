// Signal to quantization noise on normal data, as theory and the published figures have it.

#include <gtest/gtest.h>

#include "tests/quantize/coded_matrix.h"

namespace ingot::quantize {
namespace {

using formats::SchemeId;

const Matrix& normal_values() {
  static const Matrix matrix = random_matrix(4096, 4096, Shape::kNormal, 2024);
  return matrix;
}

double sqnr_of(SchemeId id, const EncodeOptions& options) {
  return sqnr_db(normal_values(), decode(encode(id, normal_values(), {.options = options})));
}

TEST(SqnrOfNormalData, Fp8BlocksReach31Decibels) {
  const double amax = sqnr_of(SchemeId::kFp8Block, {});
  EXPECT_GE(amax, 31.4);
  EXPECT_LE(amax, 31.7);
  EXPECT_GE(sqnr_of(SchemeId::kFp8Block, {.fp8_grid = Fp8Grid::kUe8m0}), 31.4);
}

TEST(SqnrOfNormalData, Int8ChannelsReach41Decibels) {
  const double db = sqnr_of(SchemeId::kInt8Channel, {});
  EXPECT_GE(db, 41.0);
  EXPECT_LE(db, 41.4);
}

TEST(SqnrOfNormalData, Nvfp4GainsWithSearch) {
  const double amax = sqnr_of(SchemeId::kNvfp4, {.nvfp4_search = Nvfp4Search::kAmax});
  const double four = sqnr_of(SchemeId::kNvfp4, {.nvfp4_search = Nvfp4Search::kFourOverSix});
  const double mse = sqnr_of(SchemeId::kNvfp4, {.nvfp4_search = Nvfp4Search::kMse});
  EXPECT_GE(amax, 20.3);
  EXPECT_GE(four, 21.1);
  EXPECT_GE(mse, 21.7);
  EXPECT_LE(mse, 22.0);
}

}  // namespace
}  // namespace ingot::quantize
