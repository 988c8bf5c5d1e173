#include "convert/plan/band.h"

#include "formats/base/checked.h"
#include "quantize/scheme.h"
#include "tests/support/test.h"

// Bands and tiles cover a tensor once and cut no group of the target.

namespace ingot::convert {
namespace {

using formats::LogicalTensor;
using formats::SchemeId;

LogicalTensor tensor_of(const formats::Shape& shape, SchemeId scheme,
                        std::array<std::uint64_t, 2> block = {0, 0}) {
  LogicalTensor tensor;
  tensor.name = "x.weight";
  tensor.shape = shape;
  tensor.encoding = {
      .scheme = scheme, .stored = {}, .block_rows = block[0], .block_cols = block[1]};
  return tensor;
}

LogicalTensor fp8_tensor(const formats::Shape& shape, std::uint64_t rows, std::uint64_t cols) {
  return tensor_of(shape, SchemeId::kFp8Block, {rows, cols});
}

// In order, without a gap, each one contiguous on both sides.
void expect_bands_cover(const LogicalTensor& tensor, const BandPlan& bands) {
  std::uint64_t next_source = 0, n_output = 0;
  for (std::uint64_t b = 0; b < bands.count(); ++b) {
    const Band band = bands.band(b);
    ASSERT_EQ(band.source_offset, next_source);
    ASSERT_GT(band.rows * band.cols, 0U);
    ASSERT_TRUE(band.rows == 1 || band.cols == bands.cols);
    ASSERT_EQ(band.first_row / bands.rows, (band.first_row + band.rows - 1) / bands.rows)
        << "a band lies in one matrix";
    next_source += band.source_bytes;
    n_output += band.output_bytes;
  }
  const std::uint64_t elements = *formats::element_count(tensor.shape);
  EXPECT_EQ(next_source, elements * bands.source_bits / 8);
  EXPECT_EQ(n_output, elements * bands.output_bits / 8);
}

void expect_cast_covers(const LogicalTensor& tensor) {
  const BandPlan bands = BandPlan::to_cast(tensor, SchemeId::kBf16);
  expect_bands_cover(tensor, bands);
  for (std::uint64_t b = 0; b < bands.count(); ++b) {
    const Band band = bands.band(b);
    EXPECT_LE(std::max(band.source_bytes, band.output_bytes), kBandBytes);
    if (tensor.encoding.block_cols != 0) {
      EXPECT_EQ(band.first_col % tensor.encoding.block_cols, 0U);
    }
  }
}

TEST(BandPlan, CastBandsCoverEveryShapeWithinTheBuffers) {
  for (const std::uint64_t rows : {1U, 2U, 127U, 128U, 129U, 576U, 5000U}) {
    for (const std::uint64_t cols : {1U, 64U, 127U, 128U, 300U, 7168U, 18432U}) {
      expect_cast_covers(fp8_tensor({rows, cols}, 128, 128));
      expect_cast_covers(tensor_of({rows, cols}, SchemeId::kF32));
      expect_cast_covers(tensor_of({rows, cols}, SchemeId::kF16));
    }
  }
  expect_cast_covers(fp8_tensor({3, 200, 300}, 128, 128));
  expect_cast_covers(fp8_tensor({2, 5'000'000}, 128, 128));
  expect_cast_covers(fp8_tensor({300, 1000}, 1, 128));
  expect_cast_covers(tensor_of({}, SchemeId::kF32));
}

TEST(BandPlan, AnEmptyTensorHasNoBands) {
  EXPECT_EQ(BandPlan::to_cast(fp8_tensor({0, 128}, 128, 128), SchemeId::kBf16).count(), 0U);
  EXPECT_EQ(BandPlan::to_cast(tensor_of({4, 0}, SchemeId::kF32), SchemeId::kBf16).count(), 0U);
  const auto bf16 = tensor_of({0, 128}, SchemeId::kBf16);
  EXPECT_EQ(BandPlan::to_encode(bf16, SchemeId::kInt8Channel, {1, 128}).count(), 0U);
  EXPECT_EQ(BandPlan::of_bytes(0, 1000).count(), 0U);
}

TEST(BandPlan, RefusesABlockWiderThanABand) {
  ingot::testing::expect_error(ErrorCode::kUnsupported, {"columns"}, [] {
    BandPlan::to_cast(fp8_tensor({2, 5'000'000}, 1, 4'000'000), SchemeId::kBf16);
  });
}

TEST(BandPlan, CutsBytesAnywhere) {
  const BandPlan bands = BandPlan::of_bytes(2500, 1000);
  ASSERT_EQ(bands.count(), 3U);
  EXPECT_EQ(bands.band(2).source_offset, 2000U);
  EXPECT_EQ(bands.band(2).output_bytes, 500U);
}

// The bands of a tensor equal the tensor done at once.
TEST(BandPlan, CuttingACastChangesNoValue) {
  std::mt19937 random(1);
  for (const formats::Shape& shape :
       {formats::Shape{700, 1100}, formats::Shape{3, 300, 900}, formats::Shape{2, 1'200'000}}) {
    const BandPlan bands = BandPlan::to_cast(fp8_tensor(shape, 128, 128), SchemeId::kBf16);
    const std::uint64_t cols = shape.back(), rows = *formats::element_count(shape) / cols;
    const std::uint64_t per_matrix = shape[shape.size() - 2];
    const std::uint64_t scale_cols = ceil_div(cols, 128), scale_rows = ceil_div(per_matrix, 128);
    std::vector<float> scales(rows / per_matrix * scale_rows * scale_cols);
    for (float& scale : scales)
      scale = std::ldexp(1.0F + static_cast<float>(random() % 1000) / 1000.0F, -10);
    std::vector<std::byte> codes(rows * cols);
    for (std::byte& code : codes) {
      do {
        code = static_cast<std::byte>(random());
      } while ((code & std::byte{0x7F}) == std::byte{0x7F});
    }
    std::vector<std::byte> whole(2 * codes.size()), pieces(2 * codes.size());
    quantize::CodedMatrix run{.scheme = SchemeId::kFp8Block,
                              .codes = codes.data(),
                              .rows = rows,
                              .cols = cols,
                              .row_bytes = cols,
                              .scales = scales,
                              .rows_per_matrix = per_matrix,
                              .scale_cols = scale_cols,
                              .block_rows = 128,
                              .block_cols = 128};
    const quantize::Transcode cast = quantize::find_transcode(SchemeId::kFp8Block, SchemeId::kBf16);
    cast(run, whole);
    for (std::uint64_t b = 0; b < bands.count(); ++b) {
      const Band band = bands.band(b);
      run.codes = codes.data() + band.source_offset;
      run.row_bytes = band.cols;
      run.rows = band.rows;
      run.cols = band.cols;
      run.first_row = band.first_row;
      run.first_col = band.first_col;
      cast(run, std::span(pieces).subspan(2 * band.source_offset, band.output_bytes));
    }
    EXPECT_EQ(std::memcmp(whole.data(), pieces.data(), whole.size()), 0);
  }
}

class EncodeBands : public ::testing::TestWithParam<SchemeId> {
 protected:
  [[nodiscard]] static BandPlan plan_of(const formats::Shape& shape) {
    return BandPlan::to_encode(tensor_of(shape, SchemeId::kBf16), GetParam(), block_of(shape));
  }
  [[nodiscard]] static std::array<std::uint64_t, 2> block_of(const formats::Shape& shape) {
    return formats::scale_group(GetParam(), shape);
  }
  [[nodiscard]] static bool has_one_scale() {
    return formats::scheme_facts(GetParam()).group_rows == 0;
  }
};

std::vector<SchemeId> quantized_schemes() {
  std::vector<SchemeId> ids;
  for (const formats::SchemeFacts& facts : formats::schemes()) {
    if (facts.quantized) ids.push_back(facts.id);
  }
  return ids;
}

INSTANTIATE_TEST_SUITE_P(Schemes, EncodeBands, ::testing::ValuesIn(quantized_schemes()),
                         [](const auto& row) {
                           std::string name(formats::scheme_facts(row.param).name);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

const formats::Shape kShapes[] = {{1, 32},        {128, 128},   {576, 7168},     {7168, 18432},
                                  {24576, 1536},  {3, 5, 1024}, {256, 4096, 96}, {2, 1 << 20},
                                  {129280, 7168}, {33, 160}};

TEST_P(EncodeBands, HoldWholeGroupsOfOneMatrix) {
  for (const formats::Shape& shape : kShapes) {
    const BandPlan bands = plan_of(shape);
    expect_bands_cover(tensor_of(shape, SchemeId::kBf16), bands);
    for (std::uint64_t b = 0; b < bands.count() && !has_one_scale(); ++b) {
      const Band band = bands.band(b);
      if ((band.first_row + band.rows) % bands.rows != 0) {
        ASSERT_EQ(band.rows % block_of(shape)[0], 0U) << "only a matrix' end cuts a group";
      }
    }
  }
}

TEST_P(EncodeBands, HaveTilesOfWholeGroups) {
  for (const formats::Shape& shape : kShapes) {
    const BandPlan bands = plan_of(shape);
    const auto block = block_of(shape);
    EXPECT_LE(bands.tile_rows, bands.band_rows);
    EXPECT_LE(bands.tile_cols, bands.cols);
    if (has_one_scale()) continue;
    EXPECT_TRUE(bands.tile_rows % block[0] == 0 || bands.tile_rows == bands.rows);
    EXPECT_TRUE(bands.tile_cols % block[1] == 0 || bands.tile_cols == bands.cols);
  }
}

TEST_P(EncodeBands, AreAboutAMegabyteOrOneGroup) {
  for (const formats::Shape& shape : kShapes) {
    const BandPlan bands = plan_of(shape);
    const std::uint64_t least = has_one_scale() ? 1 : std::min(block_of(shape)[0], bands.rows);
    EXPECT_LE(bands.band_rows * bands.row_bytes_in(),
              std::max(kBandBytes, least * bands.row_bytes_in()));
    EXPECT_GE(bands.buffer_bytes(),
              bands.band_rows * (bands.row_bytes_in() + bands.row_bytes_out()));
  }
}

TEST(BandPlan, CarriedErrorsHaveTilesOfWholeRows) {
  for (const formats::Shape& shape : kShapes) {
    const LogicalTensor tensor = tensor_of(shape, SchemeId::kBf16);
    const BandPlan bands = BandPlan::to_encode(tensor, SchemeId::kMxfp4, {1, 32}, true);
    const BandPlan plain = BandPlan::to_encode(tensor, SchemeId::kMxfp4, {1, 32});
    expect_bands_cover(tensor, bands);
    EXPECT_EQ(bands.tile_cols, bands.cols);
    EXPECT_LE(bands.tile_rows, bands.band_rows);
    EXPECT_TRUE(bands.tile_rows % 32 == 0 || bands.tile_rows == bands.rows);
    EXPECT_GT(bands.buffer_bytes() - 2 * bands.tile_rows * bands.tile_cols * sizeof(float),
              bands.tile_rows * bands.cols * sizeof(float));
    EXPECT_EQ(plain.encoder_bytes, 0U);
  }
}

TEST(BandPlan, PackedCodesTakeHalfAByte) {
  const BandPlan packed =
      BandPlan::to_encode(tensor_of({1024, 7168}, SchemeId::kMxfp4), SchemeId::kNvfp4, {1, 16});
  EXPECT_EQ(packed.row_bytes_in(), 7168U / 2);
  EXPECT_EQ(packed.row_bytes_out(), 7168U / 2);
}

}  // namespace
}  // namespace ingot::convert
