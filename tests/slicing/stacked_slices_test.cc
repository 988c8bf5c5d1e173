#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/slicing/expect_cut.h"
#include "tests/slicing/stacked_model.h"

// Experts in one tensor: gate and up are cut each on its own, and an EP rank has the matrices of
// its experts.

namespace ingot::testing {
namespace {

using shard::TpFit;

const TempDir& models() {
  static const TempDir directory;
  return directory;
}

const std::filesystem::path& stacked_bf16() {
  static const auto path = write_stacked(arch_fixture("deepseek_v3"), models() / "bf16");
  return path;
}

const std::filesystem::path& stacked_fp8() {
  static const auto path = write_stacked(synth_model(), models() / "fp8");
  return path;
}

TEST(StackedExperts, AreCutPartByPartUnderTp) {
  expect_cut(keeping(stacked_bf16(), ""), {.tp = 4});
  expect_cut(keeping(stacked_fp8(), ""), {.tp = 2, .fit = TpFit::kRetile});
  expect_cut(keeping(stacked_fp8(), ""), {.tp = 1, .etp = 2, .fit = TpFit::kPad});
}

TEST(StackedExperts, AreSharedOutUnderEp) {
  expect_cut(keeping(stacked_bf16(), ""), {.ep = 8});
  expect_cut(keeping(stacked_fp8(), ""), {.ep = 4});
}

TEST(StackedExperts, AreSharedOutAndCutUnderBoth) {
  expect_cut(keeping(stacked_bf16(), ""), {.tp = 2, .ep = 4, .etp = 2});
  expect_cut(keeping(stacked_fp8(), ""), {.tp = 2, .ep = 2, .etp = 2, .fit = TpFit::kRetile});
  expect_cut(keeping(stacked_fp8(), ""), {.ep = 2, .etp = 4, .fit = TpFit::kPad});
}

// Shared experts are cut by four, so that all experts are as wide as four blocks.
TEST(StackedExperts, UncutStacksArePaddedPartByPart) {
  Conversion conversion = keeping(stacked_fp8(), "");
  spare_attention(conversion.recipe);
  expect_cut(conversion, {.tp = 4, .ep = 2, .fit = TpFit::kPad});
}

// 64 rows of gate and 64 of up in a block of 128.
TEST(StackedExperts, JoinedGateAndUpGetSmallerBlocks) {
  const TempDir directory;
  Conversion conversion(stacked_bf16(), directory / "fp8");
  conversion.recipe.to = formats::SchemeId::kFp8Block;
  spare_attention(conversion.recipe);
  conversion.run();
  const Cut cut = {.etp = 2, .fit = TpFit::kRetile};
  expect_cut(keeping(conversion.output, ""), cut);
  slicing(conversion.output, directory / "sliced", cut).run();
  keeping(directory / "sliced", directory / "merged").run();
  EXPECT_EQ(first_difference(tensor_bytes(directory / "merged"), tensor_bytes(conversion.output)),
            "");
}

// Their gate and up stand in one tensor each, so this checks the stack as such.
TEST(StackedExperts, HoldTheNumbersOfExpertsApart) {
  const ValuesByName apart = values_of(read_output(synth_model()), config_of(synth_model()));
  const ValuesByName stacked = values_of(read_output(stacked_fp8()), config_of(stacked_fp8()));
  const std::string stem = "model.layers.1.mlp.experts.";
  const Values& gate_up = stacked.at(stem + "gate_up_proj");
  const std::vector<float>& up = apart.at(stem + "1.up_proj.weight").numbers;
  const std::size_t one = up.size();
  ASSERT_EQ(gate_up.shape, (formats::Shape{4, 256, 256}));
  EXPECT_TRUE(std::equal(up.begin(), up.end(),
                         gate_up.numbers.begin() + static_cast<std::ptrdiff_t>(3 * one)));
}

TEST(StackedExperts, MergeBackAndRecutAlike) {
  const std::vector<std::pair<Cut, Cut>> ways = {
      {{.tp = 2, .fit = TpFit::kRetile}, {.ep = 4}},
      {{.ep = 2, .etp = 2, .fit = TpFit::kPad}, {.tp = 2, .ep = 2, .fit = TpFit::kRetile}},
      {{.tp = 2, .ep = 2, .etp = 2, .pp = 2, .fit = TpFit::kRetile}, {.ep = 2, .pp = 2}}};
  for (const auto& [first, second] : ways) {
    SCOPED_TRACE(first.name() + ", then " + second.name());
    const TempDir directory;
    slicing(stacked_fp8(), directory / "sliced", first).run();
    keeping(directory / "sliced", directory / "merged").run();
    EXPECT_EQ(first_difference(tensor_bytes(directory / "merged"), tensor_bytes(stacked_fp8())),
              "");
    slicing(directory / "sliced", directory / "across", second).run();
    slicing(stacked_fp8(), directory / "direct", second).run();
    EXPECT_EQ(first_difference(payload(directory / "across"), payload(directory / "direct")), "");
  }
}

}  // namespace
}  // namespace ingot::testing
