#include "formats/storage/encoding.h"

#include <set>

#include <gtest/gtest.h>

namespace ingot::formats {
namespace {

TEST(Schemes, AreFoundByNameAndWordOnly) {
  for (const SchemeFacts& row : schemes()) {
    EXPECT_EQ(find_scheme(row.name), row.id);
    EXPECT_EQ(&scheme_facts(row.id), &row);
    if (row.to_word.empty()) continue;
    EXPECT_EQ(find_scheme(row.to_word), row.id);
  }
  EXPECT_EQ(find_scheme("fp8"), SchemeId::kFp8Block);
  EXPECT_EQ(find_scheme("fp8-block"), SchemeId::kFp8Block);
  EXPECT_EQ(find_scheme(""), std::nullopt);
  EXPECT_EQ(find_scheme("FP8"), std::nullopt);
  EXPECT_EQ(find_scheme("nvfp4"), SchemeId::kNvfp4);
  EXPECT_EQ(find_scheme("int4"), std::nullopt);
}

TEST(Schemes, NoWordMeansTwoSchemes) {
  std::set<std::string_view> words;
  for (const SchemeFacts& row : schemes()) {
    EXPECT_TRUE(words.insert(row.name).second) << row.name;
    if (row.to_word == row.name || row.to_word.empty()) continue;
    EXPECT_TRUE(words.insert(row.to_word).second) << row.to_word;
  }
}

TEST(Schemes, PlainDtypesAreTheirOwnInverse) {
  for (const SchemeId id : {SchemeId::kBf16, SchemeId::kF16, SchemeId::kF32}) {
    EXPECT_EQ(plain_scheme(plain_dtype(id)), id);
    EXPECT_FALSE(scheme_facts(id).quantized);
  }
  EXPECT_EQ(plain_scheme(DType::kF8E4M3), SchemeId::kRaw);
  EXPECT_EQ(plain_scheme(DType::kI64), SchemeId::kRaw);
}

TEST(BlockScaleShape, RoundsUpToWholeBlocks) {
  EXPECT_EQ(block_scale_shape({7168, 2048}, 128, 128), (Shape{56, 16}));
  EXPECT_EQ(block_scale_shape({576, 7168}, 128, 128), (Shape{5, 56}));
  EXPECT_EQ(block_scale_shape({1, 129}, 128, 128), (Shape{1, 2}));
  EXPECT_EQ(block_scale_shape({100, 100}, 64, 128), (Shape{2, 1}));
}

TEST(BlockScaleShape, GivesEveryStackedMatrixItsOwnGrid) {
  EXPECT_EQ(block_scale_shape({256, 4096, 7168}, 128, 128), (Shape{256, 32, 56}));
}

TEST(BlockScaleShape, IsEmptyForAnEmptyMatrix) {
  EXPECT_EQ(block_scale_shape({0, 256}, 128, 128), (Shape{0, 2}));
}

}  // namespace
}  // namespace ingot::formats
