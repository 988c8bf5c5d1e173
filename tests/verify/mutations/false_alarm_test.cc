#include <map>
#include <memory>
#include <ostream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "convert/recipe/statistics.h"
#include "tests/convert/slicing/sliced.h"
#include "tests/support/temp_dir.h"
#include "tests/verify/mutations/good_conversions.h"
#include "tests/verify/mutations/verdict.h"
#include "verify/calibrate/calibrate.h"
#include "verify/gates/gate.h"
#include "verify/outputs/prompts.h"
#include "verify/verification.h"

// Outputs that ingot converts without complaint pass the default levels, with manifest and without.

namespace ingot::testing {
namespace {

namespace fs = std::filesystem;
using formats::SchemeId;

// `is_refused`: engines refuse it, which only its manifest says to have been allowed.
void expect_accepted(const fs::path& source, const fs::path& output, bool is_refused = false) {
  Verdict verdict = judge_default(source, output);
  EXPECT_TRUE(verdict.passed) << verdict.text;
  // Shards of deepseek-mp go by names of their own, which a manifest translates.
  forget_the_conversion(output);
  verdict = judge_default(source, output);
  EXPECT_EQ(verdict.passed, !is_refused) << "without manifest: " << verdict.text;
  std::istringstream lines(verdict.text);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line.starts_with("structure.errors")) continue;
    EXPECT_TRUE(line.starts_with("[engine.refused-by-all]")) << line;
  }
}

// Whether the plan is refused unless engines' refusals are allowed.
bool is_refused_by_engines(const fs::path& source, const Target& target) {
  const formats::Checkpoint model = formats::Checkpoint::open(source);
  Conversion conversion(source, "unused");
  target.apply(conversion.recipe);
  conversion.recipe.allow = {};
  resolve(conversion.recipe, model);
  try {
    plan_for(model, conversion.recipe, conversion.plan);
    return false;
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("none of vLLM 0.32, SGLang 0.5.23 loads this"));
    return true;
  }
}

// The cut, or where it would split blocks, the first way around that loses no more than it must.
Cut fitting(const fs::path& source, Cut cut, const std::optional<Target>& target) {
  for (const shard::TpFit fit :
       {shard::TpFit::kRefuse, shard::TpFit::kRetile, shard::TpFit::kPad, shard::TpFit::kBf16}) {
    cut.fit = fit;
    Conversion conversion = slicing(source, "unused", cut);
    if (target) target->apply(conversion.recipe);
    const formats::Checkpoint model = formats::Checkpoint::open(source);
    resolve(conversion.recipe, model);
    try {
      plan_for(model, conversion.recipe, conversion.plan);
      return cut;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << error.what();
    }
  }
  ADD_FAILURE() << "no cut fits " << cut.name();
  return cut;
}

class FalseAlarm : public ::testing::TestWithParam<Target> {
 protected:
  TempDir directory_;
};

TEST_P(FalseAlarm, IsNotRaisedByAWholeConversion) {
  Conversion conversion(small_v32(), directory_ / "output");
  GetParam().apply(conversion.recipe);
  conversion.run();
  expect_accepted(conversion.input, conversion.output,
                  is_refused_by_engines(conversion.input, GetParam()));
}

TEST_P(FalseAlarm, IsNotRaisedByRankSlices) {
  Conversion conversion = slicing(small_v32(), directory_ / "output",
                                  fitting(small_v32(), {.tp = 2, .ep = 2}, GetParam()));
  GetParam().apply(conversion.recipe);
  conversion.run();
  expect_accepted(conversion.input, conversion.output);
}

INSTANTIATE_TEST_SUITE_P(FirstTargets, FalseAlarm, ::testing::ValuesIn(dialect_targets()),
                         target_name);
INSTANTIATE_TEST_SUITE_P(SlowTargets, FalseAlarm,
                         ::testing::ValuesIn(all_targets_but(dialect_targets())), target_name);

class FalseAlarmOfPlain : public ::testing::TestWithParam<SchemeId> {
 protected:
  TempDir directory_;
};

TEST_P(FalseAlarmOfPlain, IsNotRaisedByACastWhole) {
  Conversion conversion(small_v32(), directory_ / "output");
  conversion.recipe.to = GetParam();
  conversion.run();
  expect_accepted(conversion.input, conversion.output);
}

INSTANTIATE_TEST_SUITE_P(EveryCast, FalseAlarmOfPlain,
                         ::testing::Values(SchemeId::kBf16, SchemeId::kF16, SchemeId::kF32),
                         [](const auto& row) {
                           return std::string(formats::scheme_facts(row.param).name);
                         });

class FalseAlarmOfShards : public ::testing::TestWithParam<bool> {};

// DeepSeek's own layout, in FP8 as released and in BF16.
TEST_P(FalseAlarmOfShards, IsNotRaisedByTheNativeLayout) {
  const TempDir directory;
  Conversion conversion = keeping(small_v32(), directory / "output");
  if (GetParam()) conversion.recipe.to = SchemeId::kBf16;
  conversion.recipe.mtp = convert::MtpPolicy::kDrop;
  conversion.plan.layout = formats::find_layout("deepseek-mp");
  const std::uint32_t mp = GetParam() ? 2 : 1;
  conversion.plan.slicing.topology = shard::make_topology(mp, mp, 1, 1);
  conversion.run();
  expect_accepted(conversion.input, conversion.output);
}

INSTANTIATE_TEST_SUITE_P(EveryScheme, FalseAlarmOfShards, ::testing::Bool(),
                         [](const auto& row) { return row.param ? "bf16" : "fp8"; });

class FalseAlarmOfFamily : public ::testing::TestWithParam<std::string> {};

// Every scheme that its shapes take.
TEST_P(FalseAlarmOfFamily, IsNotRaisedInAnyScheme) {
  const fs::path source = arch_fixture(GetParam());
  std::size_t n_taken = 0;
  for (const Target& target : scheme_targets()) {
    SCOPED_TRACE(target.name());
    const TempDir directory;
    Conversion conversion(source, directory / "output");
    target.apply(conversion.recipe);
    try {
      conversion.run();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << error.what();
      continue;
    }
    ++n_taken;
    expect_accepted(source, conversion.output);
  }
  EXPECT_GT(n_taken, 3U);
}

TEST_P(FalseAlarmOfFamily, CopiesAndSlicesRaiseNone) {
  const TempDir directory;
  keeping(arch_fixture(GetParam()), directory / "copy").run();
  expect_accepted(arch_fixture(GetParam()), directory / "copy");
  slicing(arch_fixture(GetParam()), directory / "ranks", {.tp = 2, .ep = 2, .pp = 2}).run();
  expect_accepted(arch_fixture(GetParam()), directory / "ranks");
}

INSTANTIATE_TEST_SUITE_P(FirstFamily, FalseAlarmOfFamily, ::testing::Values("qwen3_moe"),
                         [](const auto& row) { return row.param; });
INSTANTIATE_TEST_SUITE_P(SlowFamilies, FalseAlarmOfFamily,
                         ::testing::Values("deepseek_v2", "deepseek_v3", "glm_moe_dsa"),
                         [](const auto& row) { return row.param; });

// Every way to write the example's weights passes all levels by the default gates, whole and in
// slices. Static inputs are calibrated.

// Once per process.
const std::shared_ptr<const convert::ActivationScales>& calibrated() {
  static const auto scales = [] {
    // Conversions look at the file again.
    static const TempDir directory;
    const verify::ComparedCheckpoint example = verify::open_compared(tiny_v32(), {});
    const auto tokenizer = verify::open_tokenizer(example.model);
    auto documents =
        verify::read_documents(fs::path(INGOT_SOURCE_DIR) / "tests/golden/tiny-v32/val_docs.json",
                               example.model, *tokenizer);
    documents.resize(40);
    const fs::path file = directory / "scales.safetensors";
    verify::calibrate(example.model, documents, file, {});
    return std::make_shared<const convert::ActivationScales>(convert::ActivationScales::read(file));
  }();
  return scales;
}

std::string failures(const verify::Report& report) {
  std::string text;
  for (const std::string& level : report.not_run) text += level + "\n";
  for (const verify::GateResult& result : report.gates) {
    if (result.passed) continue;
    text += fmt::format("{}[{}] {} beyond {} at {}\n", result.gate.metric, result.gate.group,
                        result.worst, result.gate.limit, result.subject);
  }
  return text;
}

class EveryLevel : public ::testing::TestWithParam<Target> {
 protected:
  void convert(Conversion conversion) {
    GetParam().apply(conversion.recipe);
    if (GetParam().storage->activations == formats::Activations::kStatic) {
      conversion.recipe.choices.input_scale.reset();
      conversion.recipe.choices.activation_scales = calibrated();
    }
    conversion.run();
  }

  void expect_passed() const {
    const verify::Report report = verify::verify_pair(tiny_v32(), directory_ / "output",
                                                      {.levels = verify::parse_levels("all")});
    EXPECT_TRUE(report.passed()) << failures(report);
    EXPECT_TRUE(report.layers && report.greedy && report.weights && report.structure);
  }

  TempDir directory_;
};

TEST_P(EveryLevel, IsPassedByAWholeConversion) {
  convert(Conversion(tiny_v32(), directory_ / "output"));
  expect_passed();
}

// By default of no target: cli.verify and cli.compare verify at every level.
INSTANTIATE_TEST_SUITE_P(SlowTargets, EveryLevel, ::testing::ValuesIn(all_targets()), target_name);

class EveryLevelOfSlices : public EveryLevel {};

TEST_P(EveryLevelOfSlices, IsPassed) {
  convert(slicing(tiny_v32(), directory_ / "output", {.tp = 1, .ep = 4}));
  expect_passed();
}

INSTANTIATE_TEST_SUITE_P(SlowTargets, EveryLevelOfSlices, ::testing::ValuesIn(all_targets()),
                         target_name);

}  // namespace
}  // namespace ingot::testing
