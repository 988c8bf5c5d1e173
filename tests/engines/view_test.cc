#include "engines/verdicts.h"
#include "tests/check/rules/rule_fixture.h"
#include "tests/support/test.h"

namespace ingot::engines {

using formats::Json;
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
  return engine_view(*Opened(edited).checkpoint, newest(engine));
}

std::string disagreements(const EngineView& view) {
  std::string text;
  for (const BelievedModules& row : view.modules) {
    if (!row.agrees()) text += row.name + ": " + row.stored + ", " + row.believed + "\n";
  }
  return text;
}

EditableCheckpoint make_channel() {
  return make_spelled(
      {"compressed-tensors", formats::SchemeId::kFp8Channel, formats::Activations::kDynamic});
}

EditableCheckpoint make_nvfp4_modelopt() {
  return make_spelled({"modelopt", formats::SchemeId::kNvfp4, formats::Activations::kStatic});
}

/// The belief about one layer; the row that names only this layer, or also others.
std::string believed(const EngineView& view, const std::string& name) {
  for (const BelievedModules& row : view.modules) {
    if (row.name == name) return row.believed;
  }
  return "no row";
}

void ignore(EditableCheckpoint& edited, const std::vector<std::string>& entries) {
  for (const std::string& entry : entries) quantization(edited)["ignore"].push_back(entry);
}

void exclude(EditableCheckpoint& edited, const std::string& entry) {
  ignore(edited, {entry});
  edited.descriptions.at("hf_quant_config.json")["quantization"]["exclude_modules"].push_back(
      entry);
}

TEST(EngineView, BelievesEverySoundSpelling) {
  for (const formats::Dialect* dialect : formats::dialects()) {
    for (const formats::StorageRow& row : dialect->storage) {
      if (row.experts == formats::ExpertForm::kStacked) continue;  // this model has none
      const EditableCheckpoint edited =
          make_spelled({std::string(dialect->name), row.scheme, row.activations});
      const Opened opened(edited);
      for (const EngineRow* engine : engines()) {
        if (!engine->find_load(*dialect, row.scheme, row.activations)) continue;
        SCOPED_TRACE(std::string(dialect->name) + " " +
                     std::string(formats::scheme_facts(row.scheme).name) + " " +
                     std::string(engine->name));
        const EngineView view = engine_view(*opened.checkpoint, *engine);
        if (!view.verdict.loads) continue;  // some of them are refused
        EXPECT_EQ(disagreements(view), "");
      }
    }
  }
}

TEST(EngineView, KnowsEveryTypeOfInt8InDescriptions) {
  const Spelled int8 = {"modelslim", formats::SchemeId::kInt8Channel,
                        formats::Activations::kDynamic};
  EditableCheckpoint edited = make_spelled(int8);
  const std::vector<std::string> weights = spelled_weights(make_plain(), int8);
  for (const char* type : {"W8A8_DYNAMIC", "W8A8_MIX", "W8A16"}) {
    describe_modelslim(edited, weights, type);
    EXPECT_EQ(disagreements(view_of(edited, Engine::kVllmAscend)), "") << type;
  }
  describe_modelslim(edited, weights, "W4A16");
  EXPECT_THAT(disagreements(view_of(edited, Engine::kVllmAscend)),
              ::testing::HasSubstr("int8-channel, unknown scheme"));
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
  // Another list comes before it in vLLM.
  quantization(native)["ignored_layers"] = {"lm_head"};
  EXPECT_NE(disagreements(view_of(native, Engine::kVllm)), "");
}

// transformers 5.19, utils/quantization_config.py:1720 and quantizers/quantizers_utils.py:26.
TEST(EngineView, TransformersReadsBeginningsAndEndsOfNames) {
  const std::string down = "model.layers.0.mlp.down_proj", head = "lm_head";
  const auto view_with = [](const Json& edits) {
    EditableCheckpoint edited = make_fp8();
    for (const auto& [key, value] : edits.items()) quantization(edited)[key] = value;
    return view_of(edited, Engine::kTransformers);
  };
  EXPECT_EQ(disagreements(view_with(Json::object())), "");
  for (const char* entry : {"down_proj", "model.layers.0.ml", "model.layers..*down"}) {
    const EngineView view = view_with({{"modules_to_not_convert", {entry}}});
    EXPECT_EQ(believed(view, down), "plain") << entry;
    EXPECT_EQ(believed(view, head), "fp8-block") << "is a Linear there, and in no list";
  }
  const EngineView inside = view_with({{"modules_to_not_convert", {"layers.0.mlp", "lm_head"}}});
  EXPECT_EQ(disagreements(inside), "");
  const Json both = {{"modules_to_not_convert", {"lm_head"}}, {"ignored_layers", {"down_proj"}}};
  EXPECT_EQ(disagreements(view_with(both)), "");
  const Json other = {{"modules_to_not_convert", nullptr}, {"ignored_layers", {"down_proj"}}};
  EXPECT_EQ(believed(view_with(other), down), "plain");
  for (const Json& refused :
       {Json{{"modules_to_not_convert", {"*.down_proj"}}}, Json{{"quant_method", nullptr}},
        Json{{"activation_scheme", "token"}}})
    EXPECT_EQ(believed(view_with(refused), head), "refused") << refused;
}

// compressed-tensors 0.17, utils/match.py and quantization/lifecycle/apply.py.
TEST(EngineView, TransformersTakesTargetsForWholeNamesAndClasses) {
  const auto view_with = [](const std::vector<std::string>& targets) {
    EditableCheckpoint edited = make_channel();
    quantization(edited)["config_groups"]["group_0"]["targets"] = targets;
    return view_of(edited, Engine::kTransformers);
  };
  const std::string o_proj = kAttention + "o_proj";
  EXPECT_EQ(disagreements(view_with({"Linear"})), "");
  EXPECT_EQ(believed(view_with({"linear"}), kDense + "down_proj"), "plain");
  EXPECT_EQ(believed(view_with({"re:.*[ov]_proj$"}), kDense + "down_proj"), "plain");
  // They take in modules that are no linear layers.
  for (const char* target : {"re:.*self_attn.*", "re:.*", "re:.*experts.*"})
    EXPECT_EQ(believed(view_with({target}), "lm_head"), "refused") << target;
}

// integrations/compressed_tensors.py:27.
TEST(EngineView, TransformersIgnoresNoExpert) {
  EditableCheckpoint edited = make_channel();
  ignore(edited, {"re:.*experts.*"});
  const EngineView view = view_of(edited, Engine::kTransformers);
  EXPECT_EQ(believed(view, kMoe + "experts.{0-3}.up_proj"), "fp8-channel");
  EXPECT_EQ(believed(view, "model.layers.1.mlp.shared_experts.up_proj"), "plain");
}

TEST(EngineView, NamesInsideOfNamesAreVllmsAlone) {
  EditableCheckpoint edited = make_nvfp4_modelopt();
  exclude(edited, "layers.1.mlp.experts");
  EXPECT_NE(disagreements(view_of(edited, Engine::kVllm)), "");
  EXPECT_EQ(disagreements(view_of(edited, Engine::kSglang)), "");
}

// vLLM 0.32, transformers_utils/config.py:893; SGLang 0.5.23, model_loader/weight_utils.py:281.
TEST(EngineView, ModeloptsBlockComesBeforeTheFile) {
  EditableCheckpoint edited = make_nvfp4_modelopt();
  edited.descriptions.at("hf_quant_config.json")["quantization"]["exclude_modules"].push_back("*");
  for (const Engine engine : {Engine::kVllm, Engine::kSglang})
    EXPECT_EQ(disagreements(view_of(edited, engine)), "");
  edited.config.erase("quantization_config");
  for (const Engine engine : {Engine::kVllm, Engine::kSglang})
    EXPECT_NE(disagreements(view_of(edited, engine)), "");
}

TEST(EngineView, ModuleOfSeveralIsListedByItsName) {
  EditableCheckpoint edited = make_channel();
  ignore(edited, {kAttention + "fused_qkv_a_proj", kAttention + "fused_qkv_a_proj_with_mqa"});
  for (const Engine engine : {Engine::kVllm, Engine::kSglang}) {
    const EngineView view = view_of(edited, engine);
    EXPECT_EQ(believed(view, kAttention + "q_a_proj"), "plain");
    EXPECT_EQ(believed(view, kAttention + "kv_a_proj_with_mqa"), "plain");
  }
}

TEST(EngineView, ModuleListedInPartIsRefused) {
  EditableCheckpoint grouped = make_channel();
  ignore(grouped, {kAttention + "q_a_proj"});
  EditableCheckpoint native = make_fp8();
  quantization(native)["modules_to_not_convert"] = {kAttention + "q_a_proj"};
  for (const EditableCheckpoint& edited : {grouped, native}) {
    for (const Engine engine : {Engine::kVllm, Engine::kSglang}) {
      const EngineView view = view_of(edited, engine);
      EXPECT_EQ(believed(view, kAttention + "q_a_proj"), "refused");
      EXPECT_EQ(believed(view, kAttention + "kv_a_proj_with_mqa"), "refused");
    }
  }
}

// SGLang's DeepSeek does not name the parts of gate_up_proj: models/deepseek_v2.py:3250.
TEST(EngineView, SglangKnowsNoGateOfCompressedTensors) {
  EditableCheckpoint edited = make_channel();
  ignore(edited, {kDense + "gate_proj", kDense + "up_proj"});
  EXPECT_EQ(believed(view_of(edited, Engine::kVllm), kDense + "gate_proj"), "plain");
  EXPECT_EQ(disagreements(view_of(edited, Engine::kSglang)), "");
}

TEST(EngineView, FirstExpertSpeaksForAll) {
  const std::vector<std::string> words = {"gate_proj", "up_proj", "down_proj"};
  for (const Engine engine : {Engine::kVllm, Engine::kSglang}) {
    EditableCheckpoint first = make_channel(), later = make_channel(), part = make_channel();
    for (const std::string& word : words) {
      ignore(first, {kMoe + "experts.0." + word});
      ignore(later, {kMoe + "experts.3." + word});
    }
    ignore(part, {kMoe + "experts.0.up_proj"});
    EXPECT_EQ(believed(view_of(first, engine), kMoe + "experts.{0-3}.up_proj"), "plain");
    EXPECT_EQ(disagreements(view_of(later, engine)), "");
    EXPECT_EQ(believed(view_of(part, engine), kMoe + "experts.{0-3}.up_proj"), "refused");
  }
}

// vLLM 0.32, layers/quantization/utils/quant_utils.py:617; SGLang 0.5.23,
// layers/quantization/utils.py:48.
TEST(EngineView, DeepseeksListNamesComponentsInSglangAlone) {
  for (const std::string entry : {"self_attn", "model.layers.0.self_attn", "layers.0.self_attn."}) {
    EditableCheckpoint edited = make_fp8();
    quantization(edited)["modules_to_not_convert"] = {entry};
    EXPECT_EQ(disagreements(view_of(edited, Engine::kVllm)), "") << entry;
    EXPECT_NE(disagreements(view_of(edited, Engine::kSglang)), "") << entry;
  }
}

// vLLM 0.32, fp8.py:156; SGLang 0.5.23, quantization/base_config.py:257.
TEST(EngineView, EmptyListHidesTheOtherInSglangAlone) {
  EditableCheckpoint edited = make_fp8();
  quantization(edited)["modules_to_not_convert"] = {kAttention + "o_proj"};
  for (const Json& list : {Json(nullptr), Json::array()}) {
    quantization(edited)["ignored_layers"] = list;
    EXPECT_EQ(believed(view_of(edited, Engine::kVllm), kAttention + "o_proj"), "plain");
    EXPECT_EQ(disagreements(view_of(edited, Engine::kSglang)), "");
  }
}

TEST(EngineView, RefusesActivationsThatTheEngineRefuses) {
  for (const char* scheme : {"static", "token", ""}) {
    EditableCheckpoint edited = make_fp8();
    quantization(edited)["activation_scheme"] = scheme;
    for (const Engine engine : {Engine::kVllm, Engine::kSglang})
      EXPECT_EQ(believed(view_of(edited, engine), "lm_head"), "refused") << scheme;
  }
}

// SGLang 0.5.23, compressed_tensors/utils.py:146.
TEST(EngineView, SglangWantsATargetForEveryLayer) {
  EditableCheckpoint edited = make_channel();
  quantization(edited)["config_groups"]["group_0"]["targets"] = {"re:.*self_attn.*"};
  EXPECT_EQ(believed(view_of(edited, Engine::kVllm), kDense + "down_proj"), "plain");
  EXPECT_EQ(believed(view_of(edited, Engine::kSglang), kDense + "down_proj"), "refused");
}

// SGLang 0.5.23, compressed_tensors.py:273. Earlier outputs of ingot have mixtures without it.
TEST(EngineView, SglangTakesBlocksFromTheTargetLinear) {
  EditableCheckpoint edited = make_spelled(
      {"compressed-tensors", formats::SchemeId::kFp8Block, formats::Activations::kDynamic});
  EXPECT_EQ(disagreements(view_of(edited, Engine::kSglang)), "");
  quantization(edited)["config_groups"]["group_0"]["targets"] = {"re:.*(proj|wq_b|wk)$",
                                                                 "re:.*with_mqa$"};
  EXPECT_EQ(disagreements(view_of(edited, Engine::kVllm)), "");
  const EngineView view = view_of(edited, Engine::kSglang);
  EXPECT_EQ(believed(view, kDense + "gate_proj"), "refused");
  EXPECT_EQ(believed(view, kDense + "down_proj"), "fp8-block") << "joined with nothing";
  EXPECT_THAT(disagreements(view),
              ::testing::HasSubstr(".self_attn.kv_b_proj: fp8-block, refused"));
  Json& groups = quantization(edited)["config_groups"];
  groups["group_0"]["targets"].push_back("Linear");
  EXPECT_EQ(disagreements(view_of(edited, Engine::kSglang)), "");
}

// deepseek_weight_loader.py:650 asks the whole config for the size of its blocks.
TEST(EngineView, SglangReadsKvBAsTheTargetLinear) {
  EditableCheckpoint edited = make_channel();
  Json& groups = quantization(edited)["config_groups"];
  groups["group_1"] = groups["group_0"];
  groups["group_0"]["targets"] = {"re:.*(proj|wq_b|wk|with_mqa)$"};
  groups["group_1"]["targets"] = {"Linear"};
  EXPECT_EQ(disagreements(view_of(edited, Engine::kSglang)), "");
  groups["group_1"]["weights"]["strategy"] = "block";
  groups["group_1"]["weights"]["block_structure"] = {128, 128};
  const std::string disagreed = disagreements(view_of(edited, Engine::kSglang));
  EXPECT_THAT(disagreed, ::testing::HasSubstr(".self_attn.kv_b_proj: fp8-channel, refused"));
  EXPECT_THAT(disagreed, ::testing::Not(::testing::HasSubstr("o_proj")));
}

// deepseek_weight_loader.py asks for kv_b_proj.weight, which packed codes do not have.
TEST(EngineView, SglangPacksNoKvB) {
  EditableCheckpoint edited = make_spelled(
      {"compressed-tensors", formats::SchemeId::kNvfp4, formats::Activations::kWeightOnly});
  quantization(edited)["ignore"] = Json::array();
  const auto refused = ::testing::ContainsRegex("kv_b_proj: [^\n]*, refused");
  EXPECT_THAT(disagreements(view_of(edited, Engine::kSglang)), refused);
  EXPECT_THAT(disagreements(view_of(edited, Engine::kVllm)), ::testing::Not(refused));
}

TEST(EngineView, RepeatedTargetIsOfTheLastGroup) {
  EditableCheckpoint edited = make_channel();
  Json& groups = quantization(edited)["config_groups"];
  Json other = groups["group_0"];
  groups["group_0"]["weights"]["strategy"] = "tensor";
  groups["group_1"] = std::move(other);
  EXPECT_EQ(disagreements(view_of(edited, Engine::kVllm)), "");
}

// vLLM 0.32, modelopt.py:1717.
TEST(EngineView, ListedLayersStandForWhatIsBuilt) {
  EditableCheckpoint edited = make_nvfp4_modelopt();
  Json& block = quantization(edited);
  block["quant_algo"] = "MIXED_PRECISION";
  block["quantized_layers"] = {{kDense + "gate_proj", {{"quant_algo", "NVFP4"}}},
                               {kMoe + "experts.3.up_proj", {{"quant_algo", "NVFP4"}}}};
  const EngineView view = view_of(edited, Engine::kVllm);
  EXPECT_EQ(believed(view, kDense + "up_proj"), "nvfp4");
  EXPECT_EQ(believed(view, kDense + "down_proj"), "plain");
  EXPECT_EQ(believed(view, kMoe + "experts.{0-3}.down_proj"), "nvfp4");
}

// vLLM 0.33, modelopt.py:359.
TEST(EngineView, FlatBlockHasItsOlderListSinceVllm033) {
  EditableCheckpoint edited = make_nvfp4_modelopt();
  edited.descriptions.clear();
  Json& block = quantization(edited);
  block["exclude_modules"] = block["ignore"];
  const Opened both(edited);
  EXPECT_EQ(disagreements(engine_view(*both.checkpoint, kVllm032Row)), "") << "ignore counts";
  block.erase("ignore");
  const Opened older(edited);
  EXPECT_EQ(disagreements(engine_view(*older.checkpoint, kVllmRow)), "");
  EXPECT_NE(disagreements(engine_view(*older.checkpoint, kVllm032Row)), "");
}

// vLLM 0.33, transformers_utils/model_arch_config_convertor.py:267.
TEST(EngineView, MixtureOfAProducerIsReadSinceVllm033) {
  EditableCheckpoint edited = make_nvfp4_modelopt();
  edited.config.erase("quantization_config");
  Json& file = edited.descriptions.at("hf_quant_config.json");
  file["producer"] = {{"name", "modelopt"}};
  file["quantization"]["quant_algo"] = "MIXED_PRECISION";
  file["quantization"]["quantized_layers"] = {{kDense + "gate_proj", {{"quant_algo", "NVFP4"}}}};
  const Opened opened(edited);
  EXPECT_EQ(believed(engine_view(*opened.checkpoint, kVllmRow), kDense + "up_proj"), "nvfp4");
  EXPECT_EQ(believed(engine_view(*opened.checkpoint, kVllm032Row), kDense + "up_proj"), "refused");
}

// compressed-tensors 0.17 to 0.20, quantization/quant_args.py; vLLM demands 0.17, SGLang 0.18.
TEST(EngineView, WordsAreThoseOfThePinnedCompressedTensors) {
  const auto reason = [](const Json& change, const EngineRow& engine) {
    EditableCheckpoint edited = make_channel();
    quantization(edited)["config_groups"]["group_0"]["weights"].update(change);
    const Opened opened(edited);
    const EngineView view = engine_view(*opened.checkpoint, engine);
    for (const BelievedModules& row : view.modules)
      if (row.believed == "refused") return row.because;
    return std::string();
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(reason({{"num_bits", 6}}, kVllmRow), HasSubstr("0.20.0"));
  EXPECT_THAT(reason({{"num_bits", 6}}, kSglangRow), HasSubstr("0.18.0 is what it demands"));
  EXPECT_EQ(reason({{"num_bits", 6}, {"zp_dtype", "torch.float8_e4m3fn"}}, kVllmRow), "");
  EXPECT_EQ(reason({{"actorder", "weight"}, {"type", "FLOAT"}}, kVllmRow), "");
  EngineRow later = kVllmRow;
  const EnginePin pin = {"compressed-tensors", "0.20.1"};
  later.pins = {&pin, 1};
  EXPECT_EQ(reason({{"num_bits", 6}}, later), "");
  EXPECT_THAT(reason({{"actorder", true}}, later), HasSubstr("no longer takes from 0.19.0 on"));
  EXPECT_THAT(reason({{"actorder", "Dynamic"}}, later), HasSubstr("actorder dynamic"));
}

TEST(EngineView, RowsStandForTheLayersThatTheyName) {
  EditableCheckpoint edited = make_fp8();
  make_weight_plain(edited, kMoe + "experts.2.up_proj.weight");
  std::vector<std::string> names;
  for (const BelievedModules& row : view_of(edited, Engine::kVllm).modules)
    if (row.name.ends_with("experts.2.up_proj") || row.name.ends_with("}.up_proj"))
      names.push_back(row.name);
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("model.layers.1.mlp.experts.2.up_proj",
                                                     "model.layers.1.mlp.experts.{0-1,3}.up_proj",
                                                     "model.layers.2.mlp.experts.{0-3}.up_proj"));
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
    // Engines read the file that the fixture damages where there is no block.
    if (!edited.descriptions.empty()) edited.config.erase("quantization_config");
    // An entry inside of a name is none for SGLang.
    const bool is_inside = fixture.rule == "modelopt.exclude-plain-whole";
    EXPECT_NE(disagreements(view_of(edited, is_inside ? Engine::kSglang : Engine::kVllm)), "");
  }
}

TEST(EngineView, DeepseeksCodeIsForItsOwnFamilies) {
  const EngineView own = view_of(make_fp8(), Engine::kDeepseek);
  EXPECT_TRUE(own.verdict.loads) << own.verdict.reason;
  EXPECT_EQ(own.verdict.evidence, Evidence::kRead);
  EXPECT_EQ(disagreements(own), "");
  const EngineView qwen =
      view_of(make_synthetic([](auto& o) { o.family = formats::find_family("qwen3_moe"); }),
              Engine::kDeepseek);
  EXPECT_FALSE(qwen.verdict.loads);
  EXPECT_TRUE(qwen.verdict.is_known);
  EXPECT_THAT(qwen.verdict.reason, ::testing::HasSubstr("written for deepseek_v3"));
}

TEST(EngineView, ExpertsWithOneScaleARowNeedABackend) {
  const EngineView rows = view_of(make_row_scaled({}), Engine::kVllm);
  EXPECT_TRUE(rows.verdict.loads) << rows.verdict.reason;
  EXPECT_THAT(rows.verdict.options, ::testing::ElementsAre("--moe-backend marlin"));
  const EngineView dense = view_of(make_row_scaled({"experts"}), Engine::kVllm);
  EXPECT_THAT(dense.verdict.options, ::testing::IsEmpty());
}

// 32 rows in groups of 32 need another backend than those with one scale.
TEST(EngineView, WeightsThatNeedDifferentOptionsAreRefused) {
  const Opened opened(make_row_scaled({"layers.1.mlp.experts"}));
  const auto verdict = [&](std::uint64_t ranks) {
    return engine_view(*opened.checkpoint, kVllmRow, {.tensor_parallel = ranks}).verdict;
  };
  EXPECT_THAT(verdict(1).options, ::testing::ElementsAre("--moe-backend marlin"));
  EXPECT_FALSE(verdict(4).loads);
  EXPECT_THAT(verdict(4).reason, ::testing::HasSubstr("--moe-backend marlin"));
  EXPECT_THAT(verdict(4).reason, ::testing::HasSubstr("--moe-backend humming"));
}

TEST(EngineView, GroupsAsWideAsExpertsNeedHumming) {
  const Opened opened(make_row_scaled({"experts"}));
  const auto options = [&](std::uint64_t ranks) {
    return engine_view(*opened.checkpoint, kVllmRow, {.tensor_parallel = ranks}).verdict.options;
  };
  EXPECT_THAT(options(1), ::testing::IsEmpty());
  EXPECT_THAT(options(4), ::testing::ElementsAre("--moe-backend humming"));
}

TEST(EngineView, SeesWhatRanksMakeOfWidths) {
  const Opened opened(make_spelled(
      {"compressed-tensors", formats::SchemeId::kMxfp4, formats::Activations::kWeightOnly}));
  const auto loads = [&](std::uint64_t ranks) {
    return engine_view(*opened.checkpoint, kVllmRow, {.tensor_parallel = ranks}).verdict.loads;
  };
  EXPECT_TRUE(loads(1));
  EXPECT_TRUE(loads(2)) << "64 columns";
  EXPECT_FALSE(loads(4)) << "32 columns";
}

TEST(EngineView, NotesWhatIsRoundedOn) {
  EXPECT_THAT(view_of(make_fp8(), Engine::kVllm).verdict.notes,
              ::testing::ElementsAre(::testing::HasSubstr("--fp8-grid ue8m0")));
  const EditableCheckpoint powers = make_synthetic([](auto& options) { options.ue8m0 = true; });
  EXPECT_THAT(view_of(powers, Engine::kVllm).verdict.notes, ::testing::IsEmpty());
  EXPECT_THAT(view_of(make_fp8(), Engine::kSglang).verdict.notes, ::testing::IsEmpty());
}

// A head in FP8 of its MTP layer is no target by name.
TEST(EngineView, NotesADraftThatIsMisread) {
  const EditableCheckpoint released =
      EditableCheckpoint::load(INGOT_SOURCE_DIR "/tests/golden/families/glm4_moe_fp8_channel");
  for (const Engine engine : {Engine::kVllm, Engine::kSglang}) {
    EngineView view = view_of(released, engine);
    deny_by_beliefs(view.modules, view.verdict);
    EXPECT_TRUE(view.verdict.loads) << view.verdict.reason;
    EXPECT_THAT(view.verdict.notes, ::testing::Contains(::testing::HasSubstr("no draft model")));
  }
}

}  // namespace
}  // namespace ingot::engines
