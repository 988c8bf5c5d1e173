#include <gtest/gtest.h>

#include "check/check.h"
#include "tests/convert/slicing/sliced.h"

// Slices merge back to the original, and are cut again as the original would be.

namespace ingot::testing {
namespace {

const std::vector<std::string> kFamilies = {"tiny-v32", "deepseek_v2", "deepseek_v3", "glm_moe_dsa",
                                            "qwen3_moe"};

// The one of random weights, a fifth as large as the example.
constexpr const char* kSynthetic = "synthetic";

std::filesystem::path fixture(const std::string& family) {
  if (family == kSynthetic) return synth_model();
  return family == "tiny-v32" ? tiny_v32() : arch_fixture(family);
}

// Every way to cut that the numbers 1, 2, 3, 4, 8 and 16 give, one axis or two at a time.
std::vector<Cut> all_cuts() {
  std::vector<Cut> cuts;
  for (const std::uint32_t n : {1U, 2U, 3U, 4U, 8U, 16U}) {
    cuts.push_back({.tp = n});
    cuts.push_back({.ep = n});
    cuts.push_back({.pp = n});
    cuts.push_back({.tp = n, .etp = 1});
    cuts.push_back({.tp = 2, .ep = n});
    cuts.push_back({.tp = n, .ep = 4});
    cuts.push_back({.tp = 2, .ep = n, .etp = 2});
    cuts.push_back({.tp = 2, .pp = n});
    cuts.push_back({.ep = 2, .pp = n});
  }
  return cuts;
}

// A few of them that together use every axis.
std::vector<Cut> some_cuts() {
  return {{.tp = 2, .ep = 4}, {.tp = 4},          {.tp = 2, .ep = 2, .etp = 2, .pp = 3},
          {.ep = 2, .pp = 2}, {.tp = 8, .pp = 2}, {.ep = 8},
          {.ep = 4}};
}

// The cut itself, or, where it splits blocks, in each of the ways that lose nothing.
std::vector<Cut> fitted(const std::filesystem::path& model, Cut cut) {
  std::vector<Cut> legal;
  if (is_legal(model, cut)) return {cut};
  for (const shard::TpFit fit : {shard::TpFit::kRetile, shard::TpFit::kPad}) {
    cut.fit = fit;
    if (is_legal(model, cut)) legal.push_back(cut);
  }
  return legal;
}

struct Case {
  std::string family;
  std::optional<Target> target = {};  // nullopt: as the fixture is
  std::size_t number = 0;             // among all cases
};

// Every scheme in every family.
std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const std::string& family : kFamilies) {
    cases.push_back({.family = family, .number = cases.size()});
    for (const Target& target : scheme_targets())
      cases.push_back({.family = family, .target = target, .number = cases.size()});
  }
  return cases;
}

// Every scheme of the synthetic model, and every family as it is.
std::vector<Case> few_cases() {
  std::vector<Case> cases;
  for (Case one : all_cases()) {
    if (one.target && one.family != kFamilies[0]) continue;
    if (one.target) one.family = kSynthetic;
    cases.push_back(one);
  }
  return cases;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  return test_name(info.param.family) + "_" +
         (info.param.target ? test_name(info.param.target->name()) : "as_it_is");
}

std::string config_text(const std::filesystem::path& directory) {
  return read_text_file(directory / "config.json", 1 << 20);
}

class SliceMerge : public ::testing::TestWithParam<Case> {
 protected:
  // The unsliced model in the scheme at hand; nullopt when the fixture cannot take it.
  std::optional<std::filesystem::path> whole() {
    Conversion conversion = keeping(fixture(GetParam().family), directory_ / "whole");
    if (GetParam().target) GetParam().target->apply(conversion.recipe);
    try {
      conversion.run();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << error.what();
      return std::nullopt;
    }
    // A source that was not converted is read where it came from.
    config_ = config_text(conversion.output);
    return GetParam().target ? conversion.output : conversion.input;
  }

  // Merges the slices at hand and compares with the original byte by byte.
  void expect_merged(const std::filesystem::path& model) {
    keeping(directory_ / "sliced", directory_ / "merged").run();
    EXPECT_EQ(first_difference(tensor_bytes(directory_ / "merged"), tensor_bytes(model)), "");
    EXPECT_EQ(config_text(directory_ / "merged"), config_);
    std::filesystem::remove_all(directory_ / "merged");
  }

  // Replaces the slices at hand by others, which must not depend on their source.
  void expect_cut_anew(const std::filesystem::path& model, const Cut& cut) {
    SCOPED_TRACE("to " + cut.name());
    slicing(directory_ / "sliced", directory_ / "across", cut).run();
    slicing(model, directory_ / "direct", cut).run();
    EXPECT_EQ(first_difference(payload(directory_ / "across"), payload(directory_ / "direct")), "");
    for (const char* name : {"sliced", "across"}) std::filesystem::remove_all(directory_ / name);
    std::filesystem::rename(directory_ / "direct", directory_ / "sliced");
  }

  // One after the other, each from the slices of the one before.
  void run(const std::filesystem::path& model, const std::vector<Cut>& cuts) {
    slicing(model, directory_ / "sliced", cuts.at(0)).run();
    for (std::size_t i = 0; i < cuts.size(); ++i) {
      SCOPED_TRACE(cuts[i].name());
      expect_merged(model);
      if (i + 1 < cuts.size()) expect_cut_anew(model, cuts[i + 1]);
    }
  }

  TempDir directory_;
  std::string config_;
};

// A cut for each scheme, another for the next; two for each family as it is.
TEST_P(SliceMerge, RestoresTheOriginalAndRecutsAlike) {
  const auto model = whole();
  ASSERT_TRUE(model) << "the family's shapes do not take the scheme";
  std::vector<Cut> legal;
  for (const Cut& cut : some_cuts()) {
    for (const Cut& way : fitted(*model, cut)) legal.push_back(way);
  }
  ASSERT_GE(legal.size(), 2U);
  const std::size_t first = 2 * GetParam().number;
  std::vector<Cut> cuts = {legal[first % legal.size()]};
  if (!GetParam().target) cuts.push_back(legal[(first + 1) % legal.size()]);
  run(*model, cuts);
}

INSTANTIATE_TEST_SUITE_P(OfEveryScheme, SliceMerge, ::testing::ValuesIn(few_cases()), case_name);

TEST(SlicesWithALimit, MergeIntoTheFilesOfThatLimit) {
  const TempDir directory;
  Conversion whole = keeping(tiny_v32(), directory / "whole");
  whole.plan.shards.max_shard_bytes = 300'000;
  whole.run();
  Conversion sliced =
      slicing(tiny_v32(), directory / "sliced", {.tp = 2, .ep = 4, .fit = shard::TpFit::kRetile});
  sliced.plan.shards = whole.plan.shards;
  sliced.run();
  keeping(directory / "sliced", directory / "merged").run();
  EXPECT_EQ(first_difference(payload(directory / "merged"), payload(directory / "whole")), "");
}

TEST(SlicesOfWhatWasAllowed, AreCopiedAndMergedAsTheyAre) {
  const TempDir directory;
  Conversion sliced =
      slicing(arch_fixture("deepseek_v3"), directory / "sliced", {.tp = 2, .ep = 2});
  sliced.recipe.to = formats::SchemeId::kFp8Channel;
  sliced.recipe.choices.dialect = "modelopt";
  sliced.recipe.allow.add("engine-refuses=*");
  sliced.run();
  // Allowances of the top manifest, or of a rank's where the directories were gathered.
  for (const bool is_gathered : {false, true}) {
    if (is_gathered) std::filesystem::remove(directory / "sliced/ingot.json");
    convert::Allowances allow;
    convert::allow_as_recorded(directory / "sliced", allow);
    ASSERT_EQ(allow.engine_refuses.size(), 1U);
    const std::filesystem::path out = directory / (is_gathered ? "gathered" : "merged");
    const formats::Checkpoint source = shard::open_source(directory / "sliced");
    convert::execute(convert::plan_conversion(source, {}, {}), out, {});
    for (const check::Finding& finding : check::check_checkpoint(out, {}).findings)
      EXPECT_EQ(finding.severity, check::Severity::kWarning) << finding.message;
  }
}

class SlowSliceMerge : public SliceMerge {};

TEST_P(SlowSliceMerge, RestoresTheOriginalFromEveryCut) {
  const auto model = whole();
  if (!model) return;  // the family's shapes do not take the scheme: whole() expects it refused
  std::vector<Cut> legal;
  for (const Cut& cut : all_cuts()) {
    for (const Cut& way : fitted(*model, cut)) legal.push_back(way);
  }
  ASSERT_GE(legal.size(), 10U);
  run(*model, legal);
}

INSTANTIATE_TEST_SUITE_P(OfEveryScheme, SlowSliceMerge, ::testing::ValuesIn(all_cases()),
                         case_name);

}  // namespace
}  // namespace ingot::testing
