#include "engines/limits.h"
#include "engines/verdicts.h"
#include "formats/dialect/dialect_table.h"
#include "tests/check/editable_checkpoint.h"
#include "tests/support/test.h"

// GPTQ, AWQ and AutoRound's packed integers as their tools wrote them (tests/golden/PROVENANCE.md).

namespace ingot::engines {

using formats::Json;
using namespace ingot::testing;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;
using enum ErrorCode;

namespace {

EditableCheckpoint golden(const std::string& name) {
  EditableCheckpoint loaded =
      EditableCheckpoint::load(std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden" / name);
  loaded.file_name = "model.safetensors";
  return loaded;
}

EditableCheckpoint golden_with(const std::string& name, const Json& said) {
  EditableCheckpoint edited = golden(name);
  edited.config["quantization_config"].merge_patch(said);
  return edited;
}

EngineView packed_view(const EditableCheckpoint& edited, Engine engine, std::uint64_t ranks = 1) {
  const TempDir dir;
  edited.write(dir.path());
  return engine_view(formats::Checkpoint::open(dir.path()), newest(engine),
                     {.tensor_parallel = ranks});
}

/// Empty where it loads, with every layer as it is stored; else the reason.
std::string refusal(const EditableCheckpoint& edited, Engine engine, std::uint64_t ranks = 1) {
  EngineView view = packed_view(edited, engine, ranks);
  deny_by_beliefs(view.modules, view.verdict);
  EXPECT_EQ(view.verdict.loads, view.verdict.reason.empty());
  EXPECT_TRUE(view.verdict.is_known);
  return view.verdict.reason;
}

TEST(PackedIntegers, AreLoadedAsTheirToolsWroteThem) {
  for (const char* name : {"families/qwen3_moe_gptq", "families/qwen3_moe_awq",
                           "families/mixtral_awq", "other_tools/auto_round_awq"}) {
    for (const Engine engine : {Engine::kVllm, Engine::kSglang}) {
      EXPECT_EQ(refusal(golden(name), engine), "") << name << " " << newest(engine).name;
    }
  }
}

TEST(PackedIntegers, OfOddWidthsHaveNoTileInSglang) {
  // o_proj has 64 outputs and 64 inputs there; AWQ falls back to a kernel of its own.
  for (const char* name : {"other_tools/auto_round_gptq", "other_tools/auto_round_8bit"}) {
    EXPECT_EQ(refusal(golden(name), Engine::kVllm), "") << name;
    EXPECT_THAT(refusal(golden(name), Engine::kSglang), HasSubstr("tiles")) << name;
  }
}

TEST(PackedIntegers, WithAnOrderAreForSglangOnly) {
  const EditableCheckpoint moe = golden("families/qwen3_moe_gptq_actorder");
  EXPECT_THAT(refusal(moe, Engine::kVllm), HasSubstr("desc_act"));
  EXPECT_EQ(refusal(moe, Engine::kSglang), "");
  EXPECT_THAT(refusal(golden("families/llama_gptq"), Engine::kVllm), HasSubstr("desc_act"));
}

TEST(PackedIntegers, WithZeroPointsAreLoadedOfAwqOnly) {
  for (const Engine engine : {Engine::kVllm, Engine::kSglang}) {
    EXPECT_THAT(refusal(golden("families/qwen3_moe_gptq_asym"), engine), HasSubstr("zero points"));
    EXPECT_THAT(refusal(golden("other_tools/auto_round_2bit_zeros"), engine),
                HasSubstr("zero points"));
  }
}

TEST(PackedIntegers, OfFewBitsAreLoadedOfAutoRoundInVllm) {
  for (const char* name : {"other_tools/auto_round_2bit", "other_tools/auto_round_3bit"}) {
    EXPECT_EQ(refusal(golden(name), Engine::kVllm), "") << name;
    EXPECT_THAT(refusal(golden(name), Engine::kSglang), HasSubstr("4 and 8 bits")) << name;
    EditableCheckpoint as_gptq = golden(name);
    as_gptq.config["quantization_config"].merge_patch(
        {{"quant_method", "gptq"}, {"desc_act", false}, {"packing_format", nullptr}});
    EXPECT_THAT(refusal(as_gptq, Engine::kVllm), HasSubstr("4 and 8 bits")) << name;
  }
}

TEST(PackedIntegers, NeedTheKeysThatEnginesRead) {
  for (const Engine engine : {Engine::kVllm, Engine::kSglang}) {
    for (const char* key : {"desc_act", "sym"}) {
      EditableCheckpoint edited = golden("families/qwen3_moe_gptq");
      edited.config["quantization_config"].erase(key);
      // Without sym the zero points are read, and both have a limit about these.
      EXPECT_NE(refusal(edited, engine), "") << key;
    }
    EXPECT_THAT(refusal(golden_with("families/qwen3_moe_awq", {{"zero_point", nullptr}}), engine),
                HasSubstr("no zero_point"));
  }
  const EditableCheckpoint other =
      golden_with("other_tools/auto_round_gptq", {{"packing_format", "auto_round:gptq"}});
  EXPECT_THAT(refusal(other, Engine::kVllm), HasSubstr("packing_format"));
}

TEST(PackedIntegers, AreLookedUpInDynamicByJoinedNames) {
  const auto with = [](const char* key, const Json& said) {
    return golden_with("families/qwen3_moe_gptq", {{"dynamic", {{key, said}}}});
  };
  for (const Engine engine : {Engine::kVllm, Engine::kSglang}) {
    EXPECT_THAT(refusal(with("-:.*o_proj", Json::object()), engine), HasSubstr("plain by -:"));
    // q_proj is in qkv_proj there, whose name has no such end.
    EXPECT_EQ(refusal(with("-:.*self_attn\\.q_proj", Json::object()), engine), "");
    EXPECT_THAT(refusal(with("+:.*qkv_proj", {{"bits", 8}}), engine), HasSubstr("bits 8"));
  }
  EXPECT_THAT(refusal(with("-:.*experts", Json::object()), Engine::kVllm), HasSubstr("plain"));
  EXPECT_EQ(refusal(with("-:.*\\.mlp\\.experts$", Json::object()), Engine::kSglang), "");
}

TEST(PackedIntegers, AreLookedUpInListsByPartsOfNames) {
  const auto gptq = [](const Json& list) {
    return golden_with("families/qwen3_moe_gptq", {{"modules_in_block_to_quantize", list}});
  };
  const Json all = {{"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
                    {"self_attn.o_proj"}};
  EXPECT_EQ(refusal(gptq(all), Engine::kVllm), "");
  EXPECT_THAT(refusal(gptq({"self_attn.q_proj", "o_proj"}), Engine::kVllm), HasSubstr("some of"));
  EXPECT_THAT(refusal(gptq({"qkv_proj", "q_proj", "k_proj", "v_proj"}), Engine::kVllm),
              HasSubstr("plain by modules_in_block_to_quantize"));
  const auto awq = [](const Json& list) {
    return golden_with("families/qwen3_moe_awq", {{"modules_to_not_convert", list}});
  };
  EXPECT_EQ(refusal(awq(Json::array()), Engine::kVllm), "") << "what has no integers is plain";
  EXPECT_THAT(refusal(awq({"mlp.gate", "q_proj"}), Engine::kVllm), HasSubstr("some of"));
  EXPECT_EQ(refusal(awq({"mlp.gate", "q_proj"}), Engine::kSglang), "") << "it is called qkv_proj";
  EXPECT_THAT(refusal(awq({"o_proj"}), Engine::kSglang), HasSubstr("plain"));
  EXPECT_THAT(refusal(awq({"experts"}), Engine::kVllm), HasSubstr("plain"));
}

TEST(PackedIntegers, OfAutoRoundAreLookedUpByLayer) {
  const std::string layer = "model.layers.0.self_attn.";
  const Json one = {{layer + "q_proj", {{"sym", true}}}};
  for (const Engine engine : {Engine::kVllm, Engine::kSglang}) {
    EXPECT_THAT(refusal(golden_with("other_tools/auto_round_awq", {{"extra_config", one}}), engine),
                HasSubstr("several forms of"));
  }
  EXPECT_THAT(refusal(golden_with("other_tools/auto_round_gptq",
                                  {{"block_name_to_quantize", "model.layers.1"}}),
                      Engine::kVllm),
              HasSubstr("plain"));
}

TEST(PackedIntegers, AreCutBetweenGroups) {
  for (const char* name : {"families/qwen3_moe_gptq", "families/qwen3_moe_awq"}) {
    for (const Engine engine : {Engine::kVllm, Engine::kSglang}) {
      // Of AWQ the experts are before the other layers, and too thin.
      EXPECT_THAT(refusal(golden(name), engine, 4), HasSubstr("ranks")) << name;
    }
  }
}

/// The options without which an engine does not load it, or is wrong.
std::vector<std::string> options(const EditableCheckpoint& edited, Engine engine,
                                 std::uint64_t ranks = 1) {
  const EngineView view = packed_view(edited, engine, ranks);
  EXPECT_TRUE(view.verdict.loads) << view.verdict.reason;
  return view.verdict.options;
}

TEST(PackedIntegers, OfAwqWithoutZeroPointsAreForHalf) {
  EditableCheckpoint moe = golden_with("families/qwen3_moe_awq", {{"zero_point", false}});
  EXPECT_THAT(options(moe, Engine::kSglang), ElementsAre("--quantization moe_wna16"));
  EXPECT_THAT(options(moe, Engine::kVllm), Not(Contains("--dtype float16")));
  moe.config["dtype"] = "bfloat16";
  EXPECT_THAT(options(moe, Engine::kSglang),
              UnorderedElementsAre("--quantization moe_wna16", "--dtype float16"));
  EXPECT_THAT(options(moe, Engine::kVllm), Contains("--dtype float16"));
  EditableCheckpoint dense = golden_with("other_tools/auto_round_awq", {{"sym", true}});
  dense.config["dtype"] = "bfloat16";
  EXPECT_THAT(options(dense, Engine::kVllm), ElementsAre("--dtype float16"));
  EXPECT_THAT(options(dense, Engine::kSglang), IsEmpty()) << "its config of AutoRound takes BF16";
}

TEST(PackedIntegers, OfGptqExpertsAreForHalfInSglang) {
  EditableCheckpoint moe = golden("families/qwen3_moe_gptq");
  EXPECT_THAT(options(moe, Engine::kSglang), Not(Contains("--dtype float16")));
  moe.config["dtype"] = "bfloat16";
  EXPECT_THAT(options(moe, Engine::kSglang), Contains("--dtype float16"));
  EXPECT_THAT(options(moe, Engine::kVllm), Not(Contains("--dtype float16")));
}

TEST(PackedIntegers, SayWhichCardsHaveNoKernel) {
  for (const char* name : {"families/qwen3_moe_gptq", "families/qwen3_moe_awq"}) {
    EXPECT_THAT(packed_view(golden(name), Engine::kSglang).verdict.notes,
                Contains(HasSubstr("compute capability 8.0")));
    EXPECT_THAT(packed_view(golden(name), Engine::kVllm).verdict.notes, IsEmpty());
  }
}

EngineWeight down_of_experts(std::uint64_t cols, std::uint64_t ranks) {
  static const formats::TensorRule kDown{.role = formats::Role::kExpertDown};
  return {.name = "model.layers.0.mlp.experts.0.down_proj.weight",
          .rule = &kDown,
          .scheme = formats::SchemeId::kInt4Group,
          .activations = formats::Activations::kWeightOnly,
          .rows = 512,
          .cols = cols,
          .block_cols = 128,
          .packed_bits = 4,
          .packed_group = 128,
          .is_in_half = true,
          .ranks = ranks};
}

TEST(PackedIntegers, OfAwqInRowsAreNotForExperts) {
  EngineWeight weight = down_of_experts(1024, 1);
  weight.has_row_scales = true;
  for (const Engine engine : {Engine::kVllm, Engine::kSglang}) {
    EXPECT_THAT(std::string(limit_of(newest(engine), formats::kAwqDialect, weight)->reason),
                HasSubstr("negative dimension"));
  }
}

TEST(PackedIntegers, OfExpertsInGroupsOnRanksAreGarbageInSglang) {
  const Dialect& gptq = formats::kGptqDialect;
  const auto limit = [&](const EngineWeight& weight, const Dialect& dialect, Engine engine) {
    return limit_of(newest(engine), dialect, weight);
  };
  EngineWeight weight = down_of_experts(1024, 2);
  EXPECT_EQ(limit(weight, gptq, Engine::kSglang)->option, "--quantization moe_wna16");
  EXPECT_EQ(limit(weight, gptq, Engine::kVllm), nullptr);
  EXPECT_EQ(limit(down_of_experts(1024, 1), gptq, Engine::kSglang), nullptr);
  weight.is_auto_round = true;
  EXPECT_EQ(limit(weight, gptq, Engine::kSglang)->effect, EngineEffect::kGarbage);
  // 640 columns are cut into groups of 64 for two ranks, and of 16, which no engine has, for eight.
  EXPECT_EQ(limit(down_of_experts(640, 2), gptq, Engine::kVllm), nullptr);
  EXPECT_THAT(std::string(limit(down_of_experts(640, 8), gptq, Engine::kVllm)->reason),
              HasSubstr("less than 32"));
}

EngineWeight linear(std::uint64_t module_rows, std::uint64_t cols, std::uint64_t ranks = 1) {
  static const formats::TensorRule kOut{.role = formats::Role::kOProj, .cut = formats::Cut::kRow};
  return {.name = "model.layers.0.self_attn.o_proj.weight",
          .rule = &kOut,
          .scheme = formats::SchemeId::kInt4Group,
          .activations = formats::Activations::kWeightOnly,
          .rows = module_rows,
          .cols = cols,
          .module_rows = module_rows,
          .block_cols = 32,
          .ranks = ranks};
}

TEST(Tiles, OfMarlinAreOneOfTwo) {
  using Widths = std::pair<std::uint64_t, std::uint64_t>;
  const auto is_refused = [](const EngineWeight& weight, Engine engine) {
    const EngineLimit* limit = limit_of(newest(engine), formats::kCompressedTensorsDialect, weight);
    return limit != nullptr && limit->is_refusal();
  };
  for (const auto& [rows, cols] : {Widths{960, 576}, {576, 576}, {64, 64}, {96, 128}}) {
    EXPECT_TRUE(is_refused(linear(rows, cols), Engine::kSglang)) << rows << " x " << cols;
    EXPECT_FALSE(is_refused(linear(rows, cols), Engine::kVllm)) << rows << " x " << cols;
  }
  for (const auto& [rows, cols] : {Widths{1152, 896}, {64, 128}, {128, 64}, {3072, 576}})
    EXPECT_FALSE(is_refused(linear(rows, cols), Engine::kSglang)) << rows << " x " << cols;
  EXPECT_FALSE(is_refused(linear(64, 256, 2), Engine::kSglang));
  EXPECT_TRUE(is_refused(linear(64, 256, 4), Engine::kSglang)) << "64 inputs a rank";
}

TEST(Tiles, OfExpertsNeedTritonOrAnotherWidth) {
  EngineWeight weight = down_of_experts(192, 2);
  weight.packed_bits = weight.packed_group = 0;
  const Dialect& ct = formats::kCompressedTensorsDialect;
  const auto limit = [&] { return limit_of(newest(Engine::kSglang), ct, weight); };
  EXPECT_EQ(limit()->option, "--moe-runner-backend triton");
  weight.block_cols = 64;
  EXPECT_TRUE(limit()->is_refusal()) << "it has 32 and 128";
  weight.ranks = 1;
  EXPECT_EQ(limit(), nullptr) << "192 is three tiles";
  weight.rows = 576;
  EXPECT_TRUE(limit()->is_refusal()) << "hidden size";
}

TEST(Tiles, AreOfJoinedWeightsOnARank) {
  const TempDir dir;
  golden("families/qwen3_moe_gptq").write(dir.path());
  const formats::Checkpoint checkpoint = formats::Checkpoint::open(dir.path());
  const EngineInput input(checkpoint);
  const auto rows_of = [&](std::string_view name, std::uint64_t ranks) {
    for (const EngineWeight& weight : engine_weights(checkpoint, input, {.tensor_parallel = ranks}))
      if (weight.name.ends_with(name)) return weight.module_rows;
    return std::uint64_t{0};
  };
  // 4 heads of 32 and twice 2 of them; four ranks have a head of keys and one of values each.
  EXPECT_EQ(rows_of("q_proj.weight", 1), 256U);
  EXPECT_EQ(rows_of("k_proj.weight", 2), 128U);
  EXPECT_EQ(rows_of("v_proj.weight", 4), 96U);
  EXPECT_EQ(rows_of("o_proj.weight", 4), 128U);
}

TEST(PackedIntegers, SayOfOtherEnginesWhatIsKnown) {
  for (const Engine engine : {Engine::kTrtllm, Engine::kVllmAscend, Engine::kTransformers}) {
    expect_error(kUnsupported, {std::string(newest(engine).name), "not known here"},
                 [&] { packed_view(golden("families/qwen3_moe_gptq"), engine); });
  }
}

}  // namespace
}  // namespace ingot::engines
