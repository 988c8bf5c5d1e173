#include <gtest/gtest.h>

#include "check/rules/loader_rules.h"
#include "convert/plan/plan.h"
#include "formats/dialect/engine_limits.h"
#include "formats/json/json.h"
#include "tests/convert/conversion.h"
#include "tests/convert/targets.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

// What engines refuse, the plan refuses, unless it is asked for by name.

namespace ingot::convert {
namespace {

using namespace formats;
using namespace ingot::testing;

/// A recipe as the command line makes one.
struct Asked {
  SchemeId to{};
  std::string dialect = {};
  std::optional<Activations> activations = {};
  std::vector<std::string> rules = {}, allow = {};
  std::optional<float> input_scale = {};
};

Recipe recipe_of(const Asked& asked, const Checkpoint& source) {
  Recipe recipe;
  recipe.to = asked.to;
  recipe.choices.dialect = asked.dialect;
  recipe.choices.activations = asked.activations;
  recipe.choices.input_scale = asked.input_scale;
  for (const std::string& rule : asked.rules) recipe.rules.push_back(parse_rule(rule));
  for (const std::string& allow : asked.allow) recipe.allow.add(allow);
  resolve(recipe, source);
  return recipe;
}

Plan plan_of(const Asked& asked, const std::filesystem::path& input = tiny_v32()) {
  const Checkpoint source = Checkpoint::open(input);
  return plan_for(source, recipe_of(asked, source));
}

void expect_refused(const Asked& asked, const std::string& fact) {
  expect_error(ErrorCode::kUnsupported, {fact, "vLLM 0.32", "SGLang 0.5.23", "engine-refuses"},
               [&] { plan_of(asked); });
}

constexpr const char* kCt = "compressed-tensors";
constexpr const char* kExperts = "model.layers.*.mlp.experts.*=bf16";

// Each of these was given to both engines with experts, and loaded in neither.
TEST(EngineRefusals, NameEngineVersionAndReason) {
  using enum SchemeId;
  using enum Activations;
  expect_refused({kFp8Block, kCt, kWeightOnly}, "number of bits");
  expect_refused({kFp8Tensor, kCt, kDynamic}, "it loads dialect deepseek");
  expect_refused({kFp8Tensor, kCt, kWeightOnly}, "number of bits");
  expect_refused({kFp8Channel, kCt, kWeightOnly}, "pack-quantized");
  expect_refused({kInt8Channel, kCt, kWeightOnly}, "without activations");
  expect_refused({.to = kInt8Channel, .dialect = kCt, .activations = kStatic, .input_scale = 1.0F},
                 "per token");
  expect_refused({kFp8Channel, "modelopt"}, "one scale per expert");
}

TEST(EngineRefusals, SpareWhatOneEngineLoads) {
  using enum SchemeId;
  using enum Activations;
  for (const Asked& asked :
       {Asked{kFp8Block}, Asked{kFp8Channel}, Asked{kFp8Tensor}, Asked{kInt8Channel},
        Asked{kInt8Block}, Asked{kNvfp4}, Asked{kMxfp4}, Asked{kMxfp8},
        Asked{.to = kFp8Tensor, .activations = kStatic, .input_scale = 1.0F},
        Asked{kNvfp4, "modelopt", kWeightOnly},
        // Engines refuse the experts alone of these, and here they have none.
        Asked{.to = kFp8Channel, .dialect = kCt, .activations = kWeightOnly, .rules = {kExperts}},
        Asked{.to = kFp8Block, .dialect = kCt, .activations = kWeightOnly, .rules = {kExperts}}}) {
    EXPECT_NO_THROW(static_cast<void>(plan_of(asked)));
  }
}

TEST(EngineRefusals, AreLiftedForTheTensorsThatAreNamed) {
  const Asked asked = {SchemeId::kInt8Channel, kCt, Activations::kWeightOnly};
  Asked some = asked;
  some.allow = {"engine-refuses=*.self_attn.*"};
  expect_refused(some, "mlp");
  const TempDir directory;
  Conversion conversion(tiny_v32(), directory / "out");
  const Checkpoint source = Checkpoint::open(tiny_v32());
  Asked all = asked;
  all.allow = {"engine-refuses=*"};
  const Recipe recipe = recipe_of(all, source);
  execute(plan_for(source, recipe), directory / "out", {});
  const formats::Json manifest = formats::read_json_file(directory / "out/ingot.json", 1 << 20);
  EXPECT_EQ(manifest["recipe"]["allow"], formats::Json::parse(R"({"engine-refuses": ["*"]})"));
}

class PlainModules : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Dialects, PlainModules,
                         ::testing::Values("deepseek", "compressed-tensors", "modelopt",
                                           "modelslim"),
                         [](const auto& row) {
                           return row.param == kCt ? std::string("compressed_tensors") : row.param;
                         });

// No loader of mixtures builds them quantized, whatever the config says.
TEST_P(PlainModules, AreRefusedInThePlan) {
  for (const std::string role :
       {"head", "embedding", "router", "mtp-head", "mtp-proj", "indexer-weights"}) {
    Asked asked = {.to = SchemeId::kFp8Block, .dialect = GetParam()};
    std::string word = "fp8";
    if (GetParam() == "modelopt") {
      asked = {
          .to = SchemeId::kNvfp4, .dialect = GetParam(), .activations = Activations::kWeightOnly};
      word = "nvfp4";
    } else if (GetParam() == "modelslim") {
      asked.to = SchemeId::kInt8Channel;
      word = "int8";
    }
    asked.rules = {"role:" + role + "=" + word};
    expect_error(ErrorCode::kUnsupported, {role, "engine-refuses"}, [&] { plan_of(asked); });
    asked.allow = {"engine-refuses=*"};
    EXPECT_NO_THROW(static_cast<void>(plan_of(asked))) << role;
  }
}

TEST(PlainModules, GlmsPredictionHeadMayBeQuantized) {
  const TempDir directory;
  formats::SynthOptions options;
  options.family = formats::find_family("glm_moe_dsa");
  options.size = formats::SynthSize::kTiny;
  formats::write_synthetic_checkpoint(directory / "in", options);
  Asked asked = {.to = SchemeId::kFp8Channel, .rules = {"role:mtp-head=fp8-channel"}};
  EXPECT_NO_THROW(static_cast<void>(plan_of(asked, directory / "in")));
  asked.rules = {"role:head=fp8-channel"};
  expect_error(ErrorCode::kUnsupported, {"head"}, [&] { plan_of(asked, directory / "in"); });
}

TEST(DefaultOfFp8Tensor, IsTheNativeFormThatBothEnginesLoad) {
  const Plan plan = plan_of({SchemeId::kFp8Tensor});
  EXPECT_EQ(plan.target.dialect->name, "deepseek");
  const formats::Json block =
      formats::parse_json(plan.json.config, "config.json")["quantization_config"];
  EXPECT_EQ(block["quant_method"], "fp8");
  EXPECT_EQ(block["activation_scheme"], "dynamic");
  EXPECT_FALSE(block.contains("weight_block_size"));
  EXPECT_EQ(
      plan_of(
          {.to = SchemeId::kFp8Tensor, .activations = Activations::kStatic, .input_scale = 1.0F})
          .target.dialect->name,
      kCt);
}

TEST(DefaultOfFp8Tensor, StaticNamesTheCommandThatMakesScales) {
  const Asked asked = {.to = SchemeId::kFp8Tensor, .activations = Activations::kStatic};
  expect_error(ErrorCode::kMissingTensor, {"ingot calibrate", "--activation-scales"},
               [&] { plan_of(asked); });
}

}  // namespace
}  // namespace ingot::convert
