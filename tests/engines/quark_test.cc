#include "engines/verdicts.h"
#include "tests/check/editable_checkpoint.h"
#include "tests/support/test.h"

// Checkpoints that AMD Quark 0.13 wrote (tests/golden/PROVENANCE.md).

namespace ingot::engines {

using formats::Json;
using namespace ingot::testing;
using ::testing::HasSubstr;

namespace {

EditableCheckpoint quark(const std::string& name, const Json& said = Json::object()) {
  EditableCheckpoint loaded = EditableCheckpoint::load(std::filesystem::path(INGOT_SOURCE_DIR) /
                                                       "tests/golden/other_tools" / name);
  loaded.file_name = "model.safetensors";
  loaded.config["quantization_config"].merge_patch(said);
  return loaded;
}

EngineVerdict verdict_on(const EditableCheckpoint& edited, Engine engine) {
  const TempDir dir;
  edited.write(dir.path());
  EngineView view = engine_view(formats::Checkpoint::open(dir.path()), newest(engine), {});
  deny_by_beliefs(view.modules, view.verdict);
  return view.verdict;
}

TEST(Quark, IsLoadedWithItsActivations) {
  for (const char* name : {"quark_fp8", "quark_fp8_channel", "quark_mxfp4"}) {
    for (const Engine engine : {Engine::kVllm, Engine::kSglang})
      EXPECT_EQ(verdict_on(quark(name), engine).reason, "") << name << " " << newest(engine).name;
  }
  EXPECT_EQ(verdict_on(quark("quark_int8_tensor"), Engine::kVllm).reason, "");
  EXPECT_THAT(verdict_on(quark("quark_int8_tensor"), Engine::kSglang).reason, HasSubstr("INT8"));
  EXPECT_THAT(verdict_on(quark("quark_mxfp4"), Engine::kSglang).notes,
              ::testing::Contains(HasSubstr("AMD")));
}

TEST(Quark, WithoutActivationsIsRefused) {
  const Json none = {{"global_quant_config", {{"input_tensors", nullptr}}}};
  EXPECT_THAT(verdict_on(quark("quark_int8"), Engine::kVllm).reason, HasSubstr("activations"));
  for (const Engine engine : {Engine::kVllm, Engine::kSglang}) {
    EXPECT_THAT(verdict_on(quark("quark_fp8_channel", none), engine).reason,
                HasSubstr("activations"));
  }
  EXPECT_EQ(verdict_on(quark("quark_mxfp4", none), Engine::kVllm).reason, "");
  EXPECT_THAT(verdict_on(quark("quark_mxfp4", none), Engine::kSglang).reason,
              HasSubstr("activations"));
}

TEST(Quark, IsLookedUpByListsAndLayers) {
  for (const Engine engine : {Engine::kVllm, Engine::kSglang}) {
    const std::string layer = "model.layers.0.self_attn.";
    EXPECT_THAT(verdict_on(quark("quark_fp8", {{"exclude", {layer + "o_proj"}}}), engine).reason,
                HasSubstr("read as plain by exclude"));
    EXPECT_THAT(verdict_on(quark("quark_fp8", {{"exclude", {layer + "q_proj"}}}), engine).reason,
                HasSubstr("some of"));
    Json other = quark("quark_fp8").config["quantization_config"]["global_quant_config"];
    other["weight"]["qscheme"] = "per_channel";
    EXPECT_THAT(
        verdict_on(quark("quark_fp8", {{"layer_quant_config", {{"*k_proj", other}}}}), engine)
            .reason,
        HasSubstr("several forms of"));
    EXPECT_THAT(verdict_on(quark("quark_fp8", {{"export", nullptr}}), engine).reason,
                HasSubstr("no export"));
  }
}

TEST(Quark, InOtherCodesIsNotKnown) {
  for (const char* name : {"quark_e5m2", "quark_int8_zeros"}) {
    const EngineVerdict verdict = verdict_on(quark(name), Engine::kVllm);
    EXPECT_FALSE(verdict.is_known) << name;
    EXPECT_THAT(verdict.reason, HasSubstr("codes")) << name;
  }
}

}  // namespace
}  // namespace ingot::engines
