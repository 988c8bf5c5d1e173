#include "quantize/quality.h"

#include "tests/quantize/coded_matrix.h"
#include "tests/quantize/each_target.h"
#include "tests/support/test.h"

namespace ingot::quantize {
namespace {

using formats::SchemeId;

QualitySums measure(const Matrix& values, const Matrix& decoded, std::size_t block_rows = 0,
                    std::size_t block_cols = 0) {
  return measure_quality({.values = values.view(),
                          .decoded = decoded.view(),
                          .block_rows = block_rows,
                          .block_cols = block_cols});
}

TEST(Quality, SumsAgreeWithPlainDoubles) {
  for (const std::size_t cols : {1U, 7U, 130U, 1000U}) {
    const Matrix values = random_matrix(37, cols, Shape::kHeavy, 5);
    Matrix decoded = values;
    for (std::size_t i = 0; i < decoded.values.size(); ++i) {
      decoded.values[i] *= i % 5 == 0 ? 1.0F : 1.03F;
      if (i % 11 == 0) decoded.values[i] = 0;
    }
    double error2 = 0, reference2 = 0, product = 0, decoded2 = 0, largest = 0;
    std::uint64_t zeroed = 0;
    for (std::size_t i = 0; i < values.values.size(); ++i) {
      const double v = values.values[i], d = decoded.values[i];
      error2 += (v - d) * (v - d);
      reference2 += v * v;
      decoded2 += d * d;
      product += v * d;
      largest = std::max(largest, std::fabs(v - d));
      if (v != 0 && d == 0) ++zeroed;
    }
    for_each_target([&] {
      const QualitySums sums = measure(values, decoded);
      EXPECT_EQ(sums.elements, 37 * cols);
      EXPECT_NEAR(sums.error2 / error2, 1, 1e-12);
      EXPECT_NEAR(sums.reference2 / reference2, 1, 1e-12);
      EXPECT_NEAR(sums.product / product, 1, 1e-12);
      EXPECT_EQ(sums.max_error, largest);
      EXPECT_EQ(sums.zeroed, zeroed);
      EXPECT_EQ(sums.saturated, 0U);
      EXPECT_NEAR(sums.relative_error(), std::sqrt(error2 / reference2), 1e-12);
      EXPECT_NEAR(sums.sqnr_db(), 10 * std::log10(reference2 / error2), 1e-9);
      EXPECT_NEAR(sums.cosine(), product / std::sqrt(reference2 * decoded2), 1e-12);
    });
  }
}

TEST(Quality, SumsFollowTheDocumentedOrder) {
  // Terms of very different size, which another order would round otherwise.
  Matrix values(2, 300);
  for (std::size_t i = 0; i < 600; ++i) {
    values.values[i] =
        std::ldexp(1.0F + static_cast<float>(i % 97) / 97.0F, static_cast<int>(i % 31));
  }
  const Matrix zeros(2, 300);
  double expected = 0;
  for (std::size_t r = 0; r < 2; ++r) {
    for (std::size_t unit = 0; unit < 300; unit += 128) {
      double lane[8] = {};
      for (std::size_t c = unit; c < std::min<std::size_t>(unit + 128, 300); ++c) {
        const double v = values.values[r * 300 + c];
        lane[c % 8] += v * v;
      }
      expected +=
          ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
    }
  }
  for_each_target([&] {
    const QualitySums sums = measure(values, zeros);
    EXPECT_EQ(sums.error2, expected);
    EXPECT_EQ(sums.reference2, expected);
    EXPECT_EQ(sums.zeroed, 600U);
  });
}

TEST(Quality, GroupsWithoutAnyErrorAreExact) {
  const Matrix values = random_matrix(5, 40, Shape::kNormal, 6);
  Matrix decoded = values;
  decoded.values[2 * 40 + 17] += 1;  // rows 2-3, columns 16-31
  for_each_target([&] {
    QualitySums sums = measure(values, decoded, 2, 16);
    EXPECT_EQ(sums.blocks, 9U);
    EXPECT_EQ(sums.exact_blocks, 8U);
    sums = measure(values, decoded);  // no scales: a block per row
    EXPECT_EQ(sums.blocks, 5U);
    EXPECT_EQ(sums.exact_blocks, 4U);
    sums = measure(values, decoded, 5, 40);
    EXPECT_EQ(sums.blocks, 1U);
    EXPECT_EQ(sums.exact_blocks, 0U);
  });
}

TEST(Quality, CountsSaturatedValues) {
  for (const formats::SchemeFacts& facts : formats::schemes()) {
    if (!facts.quantized) continue;
    // Largest code times 1.5 under a scale of 1; the values next to it fit.
    const float largest = facts.code == formats::CodeKind::kE4m3   ? 448.0F
                          : facts.code == formats::CodeKind::kInt8 ? 127.0F
                                                                   : 6.0F;
    const Matrix values = [&] {
      Matrix matrix(1, 64);
      for (std::size_t i = 0; i < 64; ++i) matrix.values[i] = largest * static_cast<float>(i) / 63;
      matrix.values[5] = -1.5F * largest;
      matrix.values[40] = 1.25F * largest;
      return matrix;
    }();
    Matrix decoded = values;
    for (float& value : decoded.values) value = std::min(std::max(value, -largest), largest);
    const std::vector<float> scales(4, 1.0F);
    for_each_target([&] {
      const QualitySums sums = measure_quality({.values = values.view(),
                                                .decoded = decoded.view(),
                                                .scales = scales,
                                                .block_rows = 1,
                                                .block_cols = 16,
                                                .half_top_step = half_top_step(facts.id)});
      EXPECT_EQ(sums.saturated, 2U) << facts.name;
    });
  }
}

TEST(Quality, RoundedValuesThatFitAreNotSaturated) {
  const Matrix values = random_matrix(64, 256, Shape::kNormal, 12);
  for (const formats::SchemeFacts& facts : formats::schemes()) {
    if (!facts.quantized || facts.id == SchemeId::kMxfp4 || facts.id == SchemeId::kMxfp8) continue;
    const Coded coded = encode(facts.id, values, {.options = {.search = ScaleSearch::kAmax}});
    const Matrix decoded = decode(coded);
    const QualitySums sums = measure_quality({.values = values.view(),
                                              .decoded = decoded.view(),
                                              .scales = coded.effective,
                                              .block_rows = coded.block_rows,
                                              .block_cols = coded.block_cols,
                                              .half_top_step = half_top_step(facts.id)});
    EXPECT_EQ(sums.saturated, 0U) << facts.name;
    EXPECT_EQ(sums.blocks, coded.effective.size()) << facts.name;
  }
}

TEST(Quality, SumsOfPartsAddUp) {
  const Matrix values = random_matrix(6, 256, Shape::kNormal, 7);
  const Matrix decoded = decode(encode(SchemeId::kNvfp4, values));
  const QualitySums whole = measure(values, decoded, 1, 16);
  QualitySums joined;
  for (std::size_t r = 0; r < 6; ++r) {
    const auto row = [&](const Matrix& matrix) {
      return formats::MatrixView<const float>{
          .data = matrix.view().row(r), .rows = 1, .cols = 256, .stride = 256};
    };
    joined.add(measure_quality(
        {.values = row(values), .decoded = row(decoded), .block_rows = 1, .block_cols = 16}));
  }
  EXPECT_EQ(joined.elements, whole.elements);
  EXPECT_EQ(joined.blocks, whole.blocks);
  EXPECT_EQ(joined.exact_blocks, whole.exact_blocks);
  EXPECT_EQ(joined.zeroed, whole.zeroed);
  EXPECT_EQ(joined.max_error, whole.max_error);
  EXPECT_NEAR(joined.error2 / whole.error2, 1, 1e-13);
}

TEST(Quality, NothingAndZerosHaveDefinedMeasures) {
  const QualitySums nothing = measure(Matrix(0, 0), Matrix(0, 0));
  EXPECT_EQ(nothing, QualitySums{});
  EXPECT_EQ(nothing.relative_error(), 0);
  EXPECT_EQ(nothing.cosine(), 1);
  EXPECT_TRUE(std::isnan(nothing.sqnr_db()));

  Matrix ones(1, 9);
  for (float& value : ones.values) value = 1;
  EXPECT_TRUE(std::isinf(measure(ones, ones).sqnr_db()));
  EXPECT_EQ(measure(ones, ones).cosine(), 1);
  EXPECT_EQ(measure(ones, Matrix(1, 9)).cosine(), 0);
  EXPECT_EQ(measure(ones, Matrix(1, 9)).relative_error(), 1);
  EXPECT_EQ(measure(ones, Matrix(1, 9)).sqnr_db(), 0);
  EXPECT_TRUE(std::isinf(measure(Matrix(1, 9), ones).relative_error()));
  EXPECT_EQ(measure(Matrix(1, 9), ones).cosine(), 0);
}

// Signal to quantization noise on normal data, as theory and the published figures have it.

const Matrix& normal_values() {
  static const Matrix matrix = random_matrix(1024, 4096, Shape::kNormal, 2024);
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
  const double amax = sqnr_of(SchemeId::kNvfp4, {.search = ScaleSearch::kAmax});
  const double four = sqnr_of(SchemeId::kNvfp4, {.search = ScaleSearch::kFourOverSix});
  const double mse = sqnr_of(SchemeId::kNvfp4, {.search = ScaleSearch::kMse});
  EXPECT_GE(amax, 20.3);
  EXPECT_GE(four, 21.1);
  EXPECT_GE(mse, 21.7);
  EXPECT_LE(mse, 22.0);
}

// The figures of docs/formats.md.
TEST(SqnrOfNormalData, Int4GainsWithSearchAndWithSigns) {
  struct Floor {
    std::size_t group;
    double amax, mse, with_signs;
  };
  for (const Floor& floor : {Floor{32, 20.2, 21.2, 21.8}, Floor{128, 18.6, 19.9, 20.3}}) {
    const auto sqnr = [&](ScaleSearch search) {
      const Coded coded = encode(SchemeId::kInt4Group, normal_values(),
                                 {.options = {.search = search}, .block = floor.group});
      return sqnr_db(normal_values(), decode(coded));
    };
    const double amax = sqnr(ScaleSearch::kAmax);
    const double mse = sqnr(ScaleSearch::kMse);
    const double with_signs = sqnr(ScaleSearch::kSigned);
    RecordProperty("group", static_cast<int>(floor.group));
    EXPECT_GE(amax, floor.amax) << floor.group;
    EXPECT_GE(mse, floor.mse) << floor.group;
    EXPECT_GE(with_signs, floor.with_signs) << floor.group;
    EXPECT_LE(with_signs, floor.with_signs + 0.2) << floor.group;
  }
}

}  // namespace
}  // namespace ingot::quantize
