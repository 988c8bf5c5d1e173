#include <algorithm>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "convert/recipe/statistics.h"
#include "tests/check/editable_checkpoint.h"
#include "tests/convert/slicing/expect_cut.h"
#include "tests/convert/slicing/odd_vocabulary.h"
#include "tests/convert/slicing/stacked_model.h"
#include "tests/support/expect_error.h"

// The numbers that a rank has, decoded only from its directory, are those that a plain reading of
// the rules cuts out of the decoded whole.

namespace ingot::testing {
namespace {

using Biases = std::vector<std::int32_t>;
using ByRank = std::map<std::size_t, Biases>;
using formats::SchemeId;
using shard::TpFit;
using testing::expect_error;

class SliceElements : public ::testing::TestWithParam<Target> {};

INSTANTIATE_TEST_SUITE_P(Dialects, SliceElements, ::testing::ValuesIn(first_targets()),
                         target_name);
INSTANTIATE_TEST_SUITE_P(SlowDialects, SliceElements,
                         ::testing::ValuesIn(all_targets_but(first_targets())), target_name);

TEST_P(SliceElements, AreThoseOfTheQuantizedWhole) {
  Conversion conversion(synth_bf16_model(), "");
  GetParam().apply(conversion.recipe);
  conversion.recipe.choices.search = quantize::ScaleSearch::kAmax;
  if (conversion.recipe.choices.input_scale) conversion.recipe.choices.input_scale = 0.0123F;
  // These cuts fall into blocks of 128 x 128. Heads cannot be padded.
  const SchemeId scheme = GetParam().storage->scheme;
  const bool has_blocks = scheme == SchemeId::kFp8Block || scheme == SchemeId::kInt8Block;
  conversion.recipe.choices.quantize_attention = true;
  if (has_blocks) spare_attention(conversion.recipe);
  const TpFit fit = has_blocks ? TpFit::kPad : TpFit::kRefuse;
  const bool has_spread_scales = std::ranges::any_of(
      GetParam().storage->parts,
      [](const formats::PartRow& part) { return part.shape == formats::PartShape::kSpread; });
  if (has_spread_scales) {
    expect_error(ErrorCode::kUnsupported, {"as ModelOpt spreads them"},
                 [&] { expect_cut(conversion, {.tp = 4, .fit = fit}); });
    expect_cut(conversion, {.ep = 4});
    return;
  }
  expect_cuts(conversion, {{.tp = 2, .ep = 2, .etp = 2, .fit = fit}, {.tp = 4, .fit = fit}});
}

TEST(SliceElementsOf, ReleasedBlocksAreEqualInSmallerOnes) {
  expect_cuts(keeping(synth_model(), ""), {{.tp = 2, .fit = TpFit::kRetile},
                                           {.tp = 2, .ep = 2, .etp = 2, .fit = TpFit::kRetile}});
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
  expect_cuts(keeping(arch_fixture("qwen3_moe"), ""), {{.tp = 4, .ep = 2}, {.tp = 8}});
}

// 510 tokens, which become 512 in the configs of the ranks and 510 again in the whole.
TEST(SliceElementsOf, PaddedVocabularyEndsInZeros) {
  const TempDir directory;
  write_odd_vocabulary(directory / "model");
  const Cut cut = {.tp = 4, .fit = TpFit::kPad};
  expect_cut(keeping(directory / "model", ""), cut);
  slicing(directory / "model", directory / "sliced", cut).run();
  EXPECT_EQ(config_of(rank_directory(directory / "sliced", 3, cut)).at("vocab_size"), 512);
  keeping(directory / "sliced", directory / "merged").run();
  EXPECT_EQ(first_difference(tensor_bytes(directory / "merged"), tensor_bytes(directory / "model")),
            "");
  EXPECT_EQ(config_of(directory / "merged").at("vocab_size"), 510);
}

// Two of them are in one tensor of twice the width.
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

// Experts in one tensor: gate and up are cut each on its own, and an EP rank has the matrices of
// its experts.

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
  expect_cuts(keeping(stacked_fp8(), ""),
              {{.tp = 2, .fit = TpFit::kRetile}, {.tp = 1, .etp = 2, .fit = TpFit::kPad}});
}

TEST(StackedExperts, AreSharedOutUnderEp) {
  expect_cut(keeping(stacked_bf16(), ""), {.ep = 8});
  expect_cut(keeping(stacked_fp8(), ""), {.ep = 4});
}

TEST(StackedExperts, AreSharedOutAndCutUnderBoth) {
  expect_cut(keeping(stacked_bf16(), ""), {.tp = 2, .ep = 4, .etp = 2});
  expect_cuts(keeping(stacked_fp8(), ""), {{.tp = 2, .ep = 2, .etp = 2, .fit = TpFit::kRetile},
                                           {.ep = 2, .etp = 4, .fit = TpFit::kPad}});
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

// Their gate and up are in one tensor each, so this checks the stack as such.
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

// Static W8A8: the dequantization of a layer adds quant_bias to a sum over ranks, once.

constexpr Cut kCut = {.tp = 4, .ep = 2, .etp = 2};

// Ranges of inputs that are not symmetric: another one for each matrix.
std::shared_ptr<const convert::ActivationScales> input_ranges(const std::filesystem::path& to) {
  EditableCheckpoint ranges;
  for (const auto& [name, tensor] : read_output(synth_bf16_model())) {
    if (tensor.shape.size() != 2) continue;
    const auto salt = static_cast<float>(ranges.tensors.size());
    ranges.put_floats(module_of(name) + ".input_min", {1}, -1 - salt / 700);
    ranges.put_floats(module_of(name) + ".input_max", {1}, 2 + salt / 300);
  }
  std::filesystem::create_directory(to);
  ranges.write(to);
  return std::make_shared<convert::ActivationScales>(
      convert::ActivationScales::read(to / ranges.file_name));
}

bool is_routed(const std::string& name) {
  return name.find(".experts.") != name.npos;
}
bool is_row_parallel(const std::string& name) {
  return name.find("o_proj") != name.npos || name.find("down_proj") != name.npos;
}

// The weights of the whole and of each rank, made once per process.
struct Written {
  OutputTensors whole;
  std::vector<OutputTensors> ranks;
};

const Written& written() {
  static const Written tensors = [] {
    const TempDir directory;
    Conversion conversion(synth_bf16_model(), directory / "whole");
    conversion.recipe.to = formats::SchemeId::kInt8Channel;
    conversion.recipe.choices.dialect = "modelslim";
    conversion.recipe.choices.activations = formats::Activations::kStatic;
    conversion.recipe.choices.activation_scales = input_ranges(directory / "ranges");
    conversion.recipe.choices.quantize_attention = true;
    conversion.run();
    Written made{.whole = read_output(conversion.output), .ranks = {}};
    conversion.output = directory / "sliced";
    conversion.plan = kCut.options();
    conversion.run();
    for (std::uint32_t rank = 0; rank < 4; ++rank)
      made.ranks.push_back(read_output(rank_directory(conversion.output, rank, kCut)));
    return made;
  }();
  return tensors;
}

// Calls visit(name, the whole, by rank) for every quant_bias that is wanted; returns how many.
std::size_t for_each_bias(
    bool row_parallel,
    const std::function<void(const std::string&, const Biases&, const ByRank&)>& visit) {
  std::size_t n = 0;
  for (const auto& [name, tensor] : written().whole) {
    if (!name.ends_with(".quant_bias") || is_row_parallel(name) != row_parallel) continue;
    ByRank by_rank;
    for (std::size_t rank = 0; rank < 4; ++rank) {
      const auto found = written().ranks[rank].find(name);
      if (found != written().ranks[rank].end()) by_rank[rank] = found->second.as<std::int32_t>();
    }
    EXPECT_EQ(by_rank.size(), is_routed(name) ? 2U : 4U) << name;
    visit(name, tensor.as<std::int32_t>(), by_rank);
    ++n;
  }
  return n;
}

TEST(QuantBias, IsOnFirstSliceOnly) {
  const auto n =
      for_each_bias(true, [](const std::string& name, const Biases& whole, const ByRank& by_rank) {
        EXPECT_THAT(whole, ::testing::Contains(::testing::Ne(0))) << name;
        Biases sum(whole.size());
        for (const auto& [rank, part] : by_rank) {
          ASSERT_EQ(part.size(), whole.size()) << name;
          for (std::size_t i = 0; i < part.size(); ++i) sum[i] += part[i];
          // Each expert is cut in two, everything else in four.
          const bool is_first = is_routed(name) ? rank % 2 == 0 : rank == 0;
          EXPECT_EQ(part, is_first ? whole : Biases(whole.size())) << name << " of rank " << rank;
        }
        EXPECT_EQ(sum, whole) << name;
      });
  // Attention, and one dense or shared and four routed experts, of the layers that are quantized.
  EXPECT_GE(n, 2U + 6);
}

TEST(QuantBias, IsCutWithColumnParallelRows) {
  const auto n =
      for_each_bias(false, [](const std::string& name, const Biases& whole, const ByRank& by_rank) {
        EXPECT_THAT(whole, ::testing::Contains(::testing::Ne(0))) << name;
        Biases joined;
        for (const auto& [rank, part] : by_rank)
          joined.insert(joined.end(), part.begin(), part.end());
        const bool is_replicated =
            name.find("_a_proj") != name.npos || name.find("indexer") != name.npos;
        if (!is_replicated) {
          EXPECT_EQ(joined, whole) << name;
          return;
        }
        for (const auto& [rank, part] : by_rank) EXPECT_EQ(part, whole) << name;
      });
  EXPECT_GE(n, 2U * (2 + 6));
}

}  // namespace
}  // namespace ingot::testing
