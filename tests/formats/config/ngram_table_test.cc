#include "formats/config/ngram_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/json/json.h"
#include "tests/support/expect_error.h"

namespace ingot::formats {
namespace {

using ::testing::ElementsAre;

/// The numbers of tests/golden/forward/qwen4_exp, whose constants transformers has stored.
Json small(const Json& changes = Json::object()) {
  Json keys = {{"vocab_size", 118},      {"ngram_size", 3},
               {"heads_per_ngram", 2},   {"ngram_vocab_size_base", 41},
               {"seed", 1234},           {"make_ngram_vocab_size_divisible_by", 8},
               {"ple_layer_ids", {3, 1}}};
  keys.update(changes);
  return keys;
}

TEST(NgramTable, HasTheConstantsThatTransformersStores) {
  const auto first = ngram_table(small(), 0), second = ngram_table(small(), 2);
  ASSERT_TRUE(first && second);
  EXPECT_THAT(first->sizes, ElementsAre(41, 43, 47, 53));
  EXPECT_EQ(first->rows, 4U * 46);
  EXPECT_THAT(first->multipliers,
              ElementsAre(65971574125615001U, 31790671197662853U, 40658331651656551U));
  EXPECT_THAT(second->sizes, ElementsAre(59, 61, 67, 71));
  EXPECT_EQ(second->rows, 4U * 66);
  EXPECT_THAT(second->multipliers,
              ElementsAre(30061554774864669U, 67349471840597459U, 40433125953952745U));
}

TEST(NgramTable, IsAsLargeAsThatOfTheRelease) {
  const auto table = ngram_table(small({{"heads_per_ngram", 8},
                                        {"ngram_vocab_size_base", 20'000'000},
                                        {"make_ngram_vocab_size_divisible_by", 128},
                                        {"ple_layer_ids", {2}}}),
                                 1);
  ASSERT_TRUE(table);
  EXPECT_EQ(table->sizes.size(), 16U);
  EXPECT_EQ(table->rows, 320'001'536U);
}

TEST(NgramTable, IsOnlyInListedLayers) {
  EXPECT_FALSE(ngram_table(small(), 1));
  EXPECT_FALSE(ngram_table(small({{"ple_layer_ids", nullptr}}), 0));
  EXPECT_FALSE(ngram_table(small({{"heads_per_ngram", 0}}), 0));
  EXPECT_FALSE(ngram_table(small({{"ngram_size", 1}}), 0));
}

TEST(NgramTable, RefusesConfigsOfNoModel) {
  using ingot::testing::expect_error;
  expect_error(ErrorCode::kLimit, {"2048 heads of n-grams"}, [] {
    (void)ngram_table(small({{"heads_per_ngram", 1024}}), 0);
  });
  expect_error(ErrorCode::kCorrupt, {"ngram_vocab_size_base"}, [] {
    (void)ngram_table(small({{"ngram_vocab_size_base", 1ULL << 40}}), 0);
  });
  expect_error(ErrorCode::kCorrupt, {"ple_layer_ids"}, [] {
    (void)ngram_table(small({{"ple_layer_ids", "2"}}), 0);
  });
}

}  // namespace
}  // namespace ingot::formats
