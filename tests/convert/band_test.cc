#include "convert/plan/band.h"

#include <gtest/gtest.h>

#include "formats/storage/encoding.h"

// Bands and tiles cover a tensor once and cut no group of the target.

namespace ingot::convert {
namespace {

using formats::LogicalTensor;
using formats::SchemeId;

constexpr std::uint64_t kMaxBand = std::uint64_t{1} << 20;

LogicalTensor tensor_of(const formats::Shape& shape, SchemeId scheme) {
  LogicalTensor tensor;
  tensor.shape = shape;
  tensor.encoding.scheme = scheme;
  return tensor;
}

class BandShapes : public ::testing::TestWithParam<SchemeId> {};

std::vector<SchemeId> quantized_schemes() {
  std::vector<SchemeId> ids;
  for (const formats::SchemeFacts& facts : formats::schemes()) {
    if (facts.quantized) ids.push_back(facts.id);
  }
  return ids;
}

INSTANTIATE_TEST_SUITE_P(Schemes, BandShapes, ::testing::ValuesIn(quantized_schemes()),
                         [](const auto& row) {
                           std::string name(formats::scheme_facts(row.param).name);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

const formats::Shape kShapes[] = {{1, 32},        {128, 128},   {576, 7168},     {7168, 18432},
                                  {24576, 1536},  {3, 5, 1024}, {256, 4096, 96}, {2, 1 << 20},
                                  {129280, 7168}, {33, 160}};

TEST_P(BandShapes, BandsFollowEachOtherAndEndWithTheMatrix) {
  for (const formats::Shape& shape : kShapes) {
    const auto block = formats::scale_group(GetParam(), shape);
    const BandShape bands(tensor_of(shape, SchemeId::kBf16), GetParam(), block);
    const std::uint64_t rows = shape[shape.size() - 2];
    std::uint64_t next = 0;
    for (std::uint64_t b = 0; b < bands.count(); ++b) {
      const BandShape::Band band = bands.band(b);
      ASSERT_EQ(band.first_row, next);
      ASSERT_GT(band.rows, 0U);
      ASSERT_EQ(band.first_row / rows, (band.first_row + band.rows - 1) / rows)
          << "a band lies in one matrix";
      const bool is_last = (band.first_row + band.rows) % rows == 0;
      const bool is_whole = formats::scheme_facts(GetParam()).group_rows == 0;
      if (!is_last && !is_whole) {
        ASSERT_EQ(band.rows % block[0], 0U) << "only a matrix' end cuts a group";
      }
      next += band.rows;
    }
    EXPECT_EQ(next, rows * (shape.size() > 2 ? shape[0] : 1));
  }
}

TEST_P(BandShapes, TilesHoldWholeGroups) {
  for (const formats::Shape& shape : kShapes) {
    const auto block = formats::scale_group(GetParam(), shape);
    const BandShape bands(tensor_of(shape, SchemeId::kBf16), GetParam(), block);
    const std::uint64_t rows = shape[shape.size() - 2], cols = shape.back();
    EXPECT_LE(bands.tile_rows, bands.band_rows);
    EXPECT_LE(bands.tile_cols, cols);
    if (formats::scheme_facts(GetParam()).group_rows == 0) continue;
    EXPECT_TRUE(bands.tile_rows % block[0] == 0 || bands.tile_rows == rows) << bands.tile_rows;
    EXPECT_TRUE(bands.tile_cols % block[1] == 0 || bands.tile_cols == cols) << bands.tile_cols;
  }
}

TEST_P(BandShapes, BandsOfRealWidthsAreAboutAMegabyte) {
  for (const formats::Shape& shape : kShapes) {
    const auto block = formats::scale_group(GetParam(), shape);
    const BandShape bands(tensor_of(shape, SchemeId::kBf16), GetParam(), block);
    const std::uint64_t least_rows =
        formats::scheme_facts(GetParam()).group_rows == 0 ? 1 : std::min(block[0], bands.rows);
    EXPECT_LE(bands.band_rows * bands.row_bytes_in(),
              std::max(kMaxBand, least_rows * bands.row_bytes_in()));
    EXPECT_GE(bands.buffer_bytes(),
              bands.band_rows * (bands.row_bytes_in() + bands.row_bytes_out()));
  }
}

TEST(BandShape, HasNoBandsForATensorWithoutElements) {
  const BandShape bands(tensor_of({0, 128}, SchemeId::kBf16), SchemeId::kInt8Channel, {1, 128});
  EXPECT_EQ(bands.count(), 0U);
}

TEST(BandShape, IsAFunctionOfShapeAndSchemesAlone) {
  const BandShape bf16(tensor_of({1024, 7168}, SchemeId::kBf16), SchemeId::kFp8Block, {128, 128});
  EXPECT_EQ(bf16.row_bytes_in(), 2U * 7168);
  EXPECT_EQ(bf16.row_bytes_out(), 7168U);
  const BandShape packed(tensor_of({1024, 7168}, SchemeId::kMxfp4), SchemeId::kNvfp4, {1, 16});
  EXPECT_EQ(packed.row_bytes_in(), 7168U / 2);
  EXPECT_EQ(packed.row_bytes_out(), 7168U / 2);
}

}  // namespace
}  // namespace ingot::convert
