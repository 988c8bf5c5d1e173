#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/check/editable_checkpoint.h"
#include "tests/slicing/expect_cut.h"

// The numbers that a rank has, decoded from its directory alone, are those that a plain reading of
// the rules cuts out of the decoded whole.

namespace ingot::testing {
namespace {

using formats::SchemeId;
using shard::TpFit;

class SliceElements : public ::testing::TestWithParam<Target> {};

INSTANTIATE_TEST_SUITE_P(Dialects, SliceElements, ::testing::ValuesIn(all_targets()),
                         [](const auto& row) { return test_name(row.param.name()); });

TEST_P(SliceElements, AreThoseOfTheQuantizedWhole) {
  Conversion conversion(synth_bf16_model(), "");
  GetParam().apply(conversion.recipe);
  conversion.recipe.choices.nvfp4_search = quantize::Nvfp4Search::kAmax;
  if (conversion.recipe.choices.input_scale) conversion.recipe.choices.input_scale = 0.0123F;
  // These cuts fall into blocks of 128 x 128. Heads cannot be padded.
  const SchemeId scheme = GetParam().storage->scheme;
  const bool has_blocks = scheme == SchemeId::kFp8Block || scheme == SchemeId::kInt8Block;
  conversion.recipe.choices.quantize_attention = true;
  if (has_blocks) spare_attention(conversion.recipe);
  const TpFit fit = has_blocks ? TpFit::kPad : TpFit::kRefuse;
  expect_cut(conversion, {.tp = 2, .ep = 2, .etp = 2, .fit = fit});
  expect_cut(conversion, {.tp = 4, .fit = fit});
}

TEST(SliceElementsOf, ReleasedBlocksAreEqualInSmallerOnes) {
  expect_cut(keeping(synth_model(), ""), {.tp = 2, .fit = TpFit::kRetile});
  expect_cut(keeping(synth_model(), ""), {.tp = 2, .ep = 2, .etp = 2, .fit = TpFit::kRetile});
  Conversion conversion(synth_bf16_model(), "");
  conversion.recipe.to = SchemeId::kFp8Block;
  conversion.recipe.choices.dialect = "compressed-tensors";
  expect_cut(conversion, {.tp = 2, .fit = TpFit::kRetile});
}

TEST(SliceElementsOf, UnsplitBlocksEqualTheWhole) {
  expect_cut(keeping(synth_model(), ""), {.ep = 4});
}

// The scales of this model are powers of two, so that BF16 loses nothing.
TEST(SliceElementsOf, WhatBecameBf16AreThoseOfTheWhole) {
  const TempDir directory;
  const auto model = synth_tiny(directory / "model", "deepseek_v32", /*ue8m0=*/true);
  expect_cut(keeping(model, ""), {.tp = 2, .fit = TpFit::kBf16});
}

TEST(SliceElementsOf, SharedKvHeadsAreOnAllTheirRanks) {
  expect_cut(keeping(arch_fixture("qwen3_moe"), ""), {.tp = 4, .ep = 2});
  expect_cut(keeping(arch_fixture("qwen3_moe"), ""), {.tp = 8});
}

// 510 tokens, which become 512 in the configs of the ranks and 510 again in the whole.
TEST(SliceElementsOf, PaddedVocabularyEndsInZeros) {
  const TempDir directory;
  EditableCheckpoint model = EditableCheckpoint::load(arch_fixture("qwen3_moe"));
  model.config["vocab_size"] = 510;
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
    model.at(name).shape[0] = 510;
    model.at(name).bytes.resize(std::size_t{510} * 128 * 2);
  }
  std::filesystem::create_directory(directory / "model");
  model.write(directory / "model");
  const Cut cut = {.tp = 4, .fit = TpFit::kPad};
  expect_cut(keeping(directory / "model", ""), cut);
  slicing(directory / "model", directory / "sliced", cut).run();
  EXPECT_EQ(config_of(rank_directory(directory / "sliced", 3, cut)).at("vocab_size"), 512);
  keeping(directory / "sliced", directory / "merged").run();
  EXPECT_EQ(first_difference(tensor_bytes(directory / "merged"), tensor_bytes(directory / "model")),
            "");
  EXPECT_EQ(config_of(directory / "merged").at("vocab_size"), 510);
}

// Two of them stand in one tensor of twice the width.
TEST(SliceElementsOf, SharedExpertsArePaddedWithRoutedOnes) {
  Conversion conversion(arch_fixture("deepseek_v2"), "");
  conversion.recipe.to = SchemeId::kFp8Block;
  spare_attention(conversion.recipe);
  expect_cut(conversion, {.tp = 4, .ep = 2, .fit = TpFit::kPad});
}

TEST(SliceElementsOf, UnquantizedFamiliesAreThoseOfTheWhole) {
  expect_cut(keeping(arch_fixture("deepseek_v2"), ""), {.tp = 4});
  expect_cut(keeping(arch_fixture("glm_moe_dsa"), ""), {.tp = 2, .ep = 8});
}

}  // namespace
}  // namespace ingot::testing
