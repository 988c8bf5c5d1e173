#include "convert/plan/transform.h"

#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "formats/base/checked.h"
#include "tests/support/expect_error.h"

namespace ingot::convert {
namespace {

using formats::LogicalTensor;
using formats::SchemeId;

LogicalTensor fp8_tensor(formats::Shape shape, std::uint64_t block_rows, std::uint64_t block_cols) {
  LogicalTensor tensor;
  tensor.name = "x.weight";
  tensor.shape = std::move(shape);
  tensor.encoding = {.scheme = SchemeId::kFp8Block,
                     .stored = {},
                     .block_rows = block_rows,
                     .block_cols = block_cols};
  return tensor;
}

LogicalTensor plain_tensor(formats::Shape shape, SchemeId scheme) {
  LogicalTensor tensor;
  tensor.name = "x.weight";
  tensor.shape = std::move(shape);
  tensor.encoding.scheme = scheme;
  return tensor;
}

void expect_bands_cover(const LogicalTensor& tensor) {
  const BandPlan bands(tensor, SchemeId::kBf16);
  const std::uint64_t elements = *formats::element_count(tensor.shape);
  std::uint64_t next_output = 0;
  for (std::uint64_t b = 0; b < bands.count(); ++b) {
    const Band band = bands.band(b);
    EXPECT_EQ(band.output_offset, next_output);
    EXPECT_EQ(band.output_bytes, 2 * band.rows * band.cols);
    EXPECT_LE(band.output_bytes, max_band_bytes());
    EXPECT_LE(band.source_bytes, max_band_bytes());
    EXPECT_TRUE(band.rows == 1 || band.cols == bands.cols())
        << "a band of several rows must be contiguous";
    if (tensor.encoding.block_cols != 0) {
      EXPECT_EQ(band.first_col % tensor.encoding.block_cols, 0U);
    }
    next_output += band.output_bytes;
  }
  EXPECT_EQ(next_output, 2 * elements);
}

TEST(BandPlan, BandsCoverEveryShapeInOrderWithinTheBuffers) {
  for (const std::uint64_t rows : {1U, 2U, 127U, 128U, 129U, 576U, 5000U}) {
    for (const std::uint64_t cols : {1U, 64U, 127U, 128U, 300U, 7168U, 18432U}) {
      expect_bands_cover(fp8_tensor({rows, cols}, 128, 128));
      expect_bands_cover(plain_tensor({rows, cols}, SchemeId::kF32));
      expect_bands_cover(plain_tensor({rows, cols}, SchemeId::kF16));
    }
  }
  expect_bands_cover(fp8_tensor({3, 200, 300}, 128, 128));
  expect_bands_cover(fp8_tensor({2, 5'000'000}, 128, 128));
  expect_bands_cover(fp8_tensor({300, 1000}, 1, 128));
  expect_bands_cover(plain_tensor({}, SchemeId::kF32));
}

TEST(BandPlan, AnEmptyTensorHasNoBands) {
  EXPECT_EQ(BandPlan(fp8_tensor({0, 128}, 128, 128), SchemeId::kBf16).count(), 0U);
  EXPECT_EQ(BandPlan(plain_tensor({4, 0}, SchemeId::kF32), SchemeId::kBf16).count(), 0U);
}

TEST(BandPlan, RefusesABlockWiderThanABand) {
  ingot::testing::expect_error(ErrorCode::kUnsupported, {"columns"}, [] {
    BandPlan(fp8_tensor({2, 5'000'000}, 1, 4'000'000), SchemeId::kBf16);
  });
}

// Cutting must not change a value: the bands of a tensor equal the tensor done at once.
TEST(TransformBand, BandsEqualTheWhole) {
  std::mt19937 random(1);
  for (const formats::Shape& shape :
       {formats::Shape{700, 1100}, formats::Shape{3, 300, 900}, formats::Shape{2, 1'200'000}}) {
    const LogicalTensor tensor = fp8_tensor(shape, 128, 128);
    const BandPlan bands(tensor, SchemeId::kBf16);
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
    const quantize::EncodedRows all{.weight = codes.data(),
                                    .rows = rows,
                                    .cols = cols,
                                    .first_row = 0,
                                    .first_col = 0,
                                    .scales = scales,
                                    .rows_per_matrix = per_matrix,
                                    .scale_cols = scale_cols,
                                    .block_rows = 128,
                                    .block_cols = 128};
    quantize::find_transcode(SchemeId::kFp8Block, SchemeId::kBf16)(all, whole);
    for (std::uint64_t b = 0; b < bands.count(); ++b) {
      const Band band = bands.band(b);
      transform_band(tensor, bands, band, SchemeId::kBf16, scales,
                     std::span(codes).subspan(band.source_offset, band.source_bytes),
                     std::span(pieces).subspan(band.output_offset, band.output_bytes));
    }
    EXPECT_EQ(std::memcmp(whole.data(), pieces.data(), whole.size()), 0);
  }
}

}  // namespace
}  // namespace ingot::convert
