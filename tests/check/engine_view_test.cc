#include "check/rules/engine_view.h"

#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/check/rule_fixture.h"
#include "tests/support/expect_error.h"

namespace ingot::check {

using formats::Engine;
using namespace ingot::testing;
using enum ErrorCode;

namespace {

struct Opened {
  explicit Opened(const EditableCheckpoint& edited) {
    edited.write(dir.path());
    formats::OpenOptions options;
    options.faults = &faults;
    checkpoint.emplace(formats::Checkpoint::open(dir.path(), options));
  }
  ErrorList faults;
  TempDir dir;
  std::optional<formats::Checkpoint> checkpoint;
};

EngineView view_of(const EditableCheckpoint& edited, Engine engine) {
  return engine_view(*Opened(edited).checkpoint, engine);
}

std::string disagreements(const EngineView& view) {
  std::string text;
  for (const BelievedModules& row : view.modules) {
    if (!row.agrees()) text += row.name + ": " + row.stored + ", " + row.believed + "\n";
  }
  return text;
}

TEST(EngineView, BelievesEverySoundSpelling) {
  for (const formats::Dialect* dialect : formats::dialects()) {
    for (const formats::StorageRow& row : dialect->storage) {
      if (row.experts == formats::ExpertForm::kStacked) continue;  // this model has none
      const EditableCheckpoint edited =
          make_spelled({std::string(dialect->name), row.scheme, row.activations});
      const Opened opened(edited);
      for (const formats::EngineFacts& engine : formats::engines()) {
        if (!find_load(engine.engine, *dialect, row.scheme, row.activations)) continue;
        SCOPED_TRACE(std::string(dialect->name) + " " +
                     std::string(formats::scheme_facts(row.scheme).name) + " " +
                     std::string(engine.name));
        EXPECT_EQ(disagreements(engine_view(*opened.checkpoint, engine.engine)), "");
      }
    }
  }
}

TEST(EngineView, CountsEveryLinearLayerOnce) {
  const EngineView view = view_of(make_fp8(), Engine::kVllm);
  std::uint64_t n_experts = 0;
  std::vector<std::string> names;
  for (const BelievedModules& row : view.modules) {
    names.push_back(row.name);
    if (row.joined == "experts.w13") n_experts += row.count;
  }
  EXPECT_EQ(n_experts, 2U * 4 * 2) << "gate and up of 4 experts in layers 1 and 2";
  EXPECT_THAT(names, ::testing::Contains("model.layers.{1-2}.mlp.experts.{0-3}.down_proj"));
  EXPECT_THAT(names, ::testing::Contains("model.layers.{0-2}.self_attn.q_a_proj"));
  EXPECT_THAT(names, ::testing::Contains("lm_head"));
}

TEST(EngineView, SeesWhatTheListsSay) {
  EditableCheckpoint edited = make_spelled(
      {"compressed-tensors", formats::SchemeId::kInt8Channel, formats::Activations::kDynamic});
  quantization(edited)["ignore"].push_back("re:.*o_proj$");
  EXPECT_EQ(disagreements(view_of(edited, Engine::kVllm)),
            "model.layers.{0-2}.self_attn.o_proj: int8-channel, plain\n");

  EditableCheckpoint native = make_fp8();
  make_weight_plain(native, kAttention + "o_proj.weight");
  EXPECT_EQ(disagreements(view_of(native, Engine::kVllm)),
            "model.layers.0.self_attn.o_proj: plain, fp8-block\n");
  quantization(native)["modules_to_not_convert"] = {"model.layers.0.self_attn.o_proj"};
  EXPECT_EQ(disagreements(view_of(native, Engine::kVllm)), "");
  // Another list comes before it in vLLM, and transformers does not know that one.
  quantization(native)["ignored_layers"] = {"lm_head"};
  EXPECT_NE(disagreements(view_of(native, Engine::kVllm)), "");
  EXPECT_EQ(disagreements(view_of(native, Engine::kTransformers)), "");
}

TEST(EngineView, NamesInsideOfNamesAreVllmsAlone) {
  EditableCheckpoint edited =
      make_spelled({"modelopt", formats::SchemeId::kNvfp4, formats::Activations::kStatic});
  edited.descriptions.at("hf_quant_config.json")["quantization"]["exclude_modules"].push_back(
      "layers.1.mlp.experts.0");
  EXPECT_NE(disagreements(view_of(edited, Engine::kVllm)), "");
  EXPECT_EQ(disagreements(view_of(edited, Engine::kSglang)), "");
}

// Where a rule about lists finds something, the module is believed otherwise, too.
TEST(EngineView, DisagreesWhereConfigsContradictTensors) {
  for (const RuleFixture& fixture : rule_fixtures()) {
    if (fixture.rule != "ct.ignore" && !fixture.rule.starts_with("modelopt.exclude-plain") &&
        fixture.rule != "modelopt.exclude-quantized")
      continue;
    SCOPED_TRACE(std::string(fixture.rule));
    EditableCheckpoint edited = fixture.make();
    if (fixture.damage) fixture.damage(edited);
    // An entry inside of a name is none for SGLang.
    const bool is_inside = fixture.rule == "modelopt.exclude-plain-whole";
    EXPECT_NE(disagreements(view_of(edited, is_inside ? Engine::kSglang : Engine::kVllm)), "");
  }
}

TEST(EngineView, KeepsFindingsOfTheEngineAlone) {
  const auto finding = [](std::string_view rule) {
    Finding made = violation(kUnsupported, "", "", "x");
    made.severity = Severity::kWarning;
    made.rule = rule;
    return made;
  };
  const std::vector<Finding> all = {finding("engine.refused-by-vllm"),
                                    finding("engine.refused-by-sglang"), finding("")};
  const std::vector<Finding> own = findings_for(Engine::kVllm, all);
  ASSERT_EQ(own.size(), 2U);
  EXPECT_EQ(own[0].rule, "engine.refused-by-vllm");
  EXPECT_EQ(own[0].severity, Severity::kError);
  EXPECT_EQ(own[1].severity, Severity::kWarning);
  EXPECT_EQ(findings_for(Engine::kTransformers, all).size(), 1U);
}

TEST(EngineOf, TakesTheVersionThatIsKnown) {
  EXPECT_EQ(formats::engine_of("vllm"), Engine::kVllm);
  EXPECT_EQ(formats::engine_of("vllm:0.32"), Engine::kVllm);
  EXPECT_EQ(formats::engine_of("sglang:0.5.23"), Engine::kSglang);
  for (const char* other : {"vllm:0.3", "vllm:2", "vllm:", "trtllm:1.0"})
    expect_error(kUnsupported, {"not of version"}, [&] { formats::engine_of(other); });
  expect_error(kInvalidArgument, {"'vlm' is no engine", "vllm-ascend"},
               [] { formats::engine_of("vlm"); });
}

}  // namespace
}  // namespace ingot::check
