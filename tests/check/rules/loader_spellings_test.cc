// Loader rules on the outputs of dialects: every row, mixtures, and any JSON in their place.

#include "engines/verdicts.h"
#include "tests/check/rules/rule_fixture.h"
#include "tests/support/test.h"

namespace ingot::formats {

using check::Finding;

using engines::Engine;

namespace {

using namespace ingot::testing;

// The complaints of vLLM 0.32 and SGLang 0.5.23 about each row, with experts and with attention
// where the scheme takes it.
std::set<std::string_view> known_complaints(const Dialect& dialect, const StorageRow& row) {
  using enum SchemeId;
  using enum Activations;
  const SchemeId scheme = row.scheme;
  const Activations activations = row.activations;
  if (dialect.name == "modelopt" && (scheme == kFp8Channel || scheme == kFp8Block))
    return {"engine.refused-by-all", "modelopt.algo-of-sglang"};
  if (scheme == kInt8Block) return {"engine.refused-by-vllm"};
  if (dialect.name != "compressed-tensors") return {};
  switch (scheme) {
    case kFp8Block:
      if (activations == kWeightOnly) return {"engine.refused-by-all"};
      return {};
    case kFp8Channel:
    case kFp8Tensor:
      // Widths of this model have no tile in SGLang's Marlin.
      if (activations == kWeightOnly) return {"engine.refused-by-all", "engine.refused-by-sglang"};
      if (scheme == kFp8Tensor && activations != kStatic) return {"engine.refused-by-all"};
      return {};
    case kInt8Channel:
      if (activations != kDynamic) return {"engine.refused-by-all"};
      return {"engine.options-of-sglang"};
    case kMxfp4:
    case kMxfp8:
      return {"engine.refused-by-sglang"};
    default:
      return {};
  }
}

/// Checks that of the known complaints each is made, and leaves the others.
std::string other_complaints(std::vector<Finding> findings, const Dialect& dialect,
                             const StorageRow& row) {
  const auto known = known_complaints(dialect, row);
  for (const std::string_view rule : known) {
    EXPECT_NE(std::erase_if(findings, [&](const Finding& f) { return f.rule == rule; }), 0U)
        << rule;
  }
  return text_of(findings);
}

TEST(LoaderRules, AreQuietOnEverySpellingOfEveryDialect) {
  for (const Dialect* dialect : dialects()) {
    for (const StorageRow& row : dialect->storage) {
      if (row.experts == formats::ExpertForm::kStacked) continue;  // this model has none
      if (find_storage(*dialect, row.scheme, row.activations) != &row) continue;  // a second one
      SCOPED_TRACE(std::string(dialect->name) + " " + std::string(scheme_facts(row.scheme).name) +
                   " " + std::string(activations_name(row.activations)));
      const auto findings =
          run_all_rules(make_spelled({std::string(dialect->name), row.scheme, row.activations}));
      EXPECT_EQ(other_complaints(findings, *dialect, row), "");
    }
  }
}

engines::EngineVerdict verdict_of(Engine engine, const EditableCheckpoint& edited) {
  const TempDir dir;
  edited.write(dir.path());
  const Checkpoint model = Checkpoint::open(dir.path());
  return engine_verdict(model, engines::EngineInput(model), engines::newest(engine), {});
}

// The parts of static FP8 have the names of transformers there, and these.
TEST(LoaderRules, AreQuietOnStaticFp8AsVllmNamesIt) {
  EditableCheckpoint edited =
      make_spelled({"deepseek", SchemeId::kFp8Tensor, Activations::kStatic});
  quantization(edited)["activation_scheme"] = "static";
  for (const Engine engine : {Engine::kVllm, Engine::kSglang})
    EXPECT_THAT(verdict_of(engine, edited).reason, ::testing::HasSubstr("only for Mistral"));
  for (const auto& [from, to] :
       {std::pair<std::string, std::string>(".weight_scale_inv", ".weight_scale"),
        {".activation_scale", ".input_scale"}}) {
    for (const auto& [name, tensor] : EditableCheckpoint(edited).tensors) {
      if (!name.ends_with(from)) continue;
      auto node = edited.tensors.extract(name);
      node.key().replace(name.size() - from.size(), from.size(), to);
      edited.tensors.insert(std::move(node));
    }
  }
  EXPECT_EQ(text_of(run_all_rules(edited)), "");
  for (const Engine engine : {Engine::kVllm, Engine::kSglang})
    EXPECT_TRUE(verdict_of(engine, edited).loads);
}

// vLLM has a class for linears, and takes experts for FP8 with one scale.
TEST(EngineVerdicts, KnowModeloptsFp8BlocksOfLinears) {
  const Spelled blocks = {"modelopt", SchemeId::kFp8Block, Activations::kDynamic};
  EditableCheckpoint edited = make_spelled(blocks);
  EXPECT_THAT(verdict_of(Engine::kVllm, edited).reason, ::testing::HasSubstr("a scale per tensor"));
  const EditableCheckpoint plain = make_plain();
  for (const std::string& name : testing::spelled_weights(plain, blocks)) {
    if (name.find(".experts.") == std::string::npos) continue;
    edited.tensors.erase(name.substr(0, name.size() - 7) + ".weight_scale");
    edited.tensors[name] = plain.tensors.at(name);
  }
  EXPECT_TRUE(verdict_of(Engine::kVllm, edited).loads) << verdict_of(Engine::kVllm, edited).reason;
  EXPECT_FALSE(verdict_of(Engine::kSglang, edited).loads);
}

// The largest released layout of two schemes: attention in FP8 blocks, MLPs in NVFP4.
TEST(LoaderRules, AreQuietOnAMixtureInTwoGroups) {
  const Spelled nvfp4 = {"compressed-tensors", SchemeId::kNvfp4, Activations::kWeightOnly};
  const Spelled fp8 = {"compressed-tensors", SchemeId::kFp8Block, Activations::kDynamic};
  EditableCheckpoint edited = make_spelled(nvfp4);
  for (const std::string& name : testing::spelled_weights(make_plain(), fp8)) {
    if (name.find("self_attn") != std::string::npos) put_spelled(edited, name, fp8);
  }
  Json groups = make_spelled(fp8).config["quantization_config"]["config_groups"];
  groups["group_1"] = quantization(edited)["config_groups"]["group_0"];
  groups["group_0"]["targets"] = {"Linear"};
  groups["group_1"]["targets"] = {"re:.*mlp.*(gate|up|down)_proj$"};
  quantization(edited)["config_groups"] = groups;
  quantization(edited)["format"] = "mixed-precision";
  quantization(edited)["ignore"] = make_spelled(fp8).config["quantization_config"]["ignore"];
  EXPECT_EQ(text_of(run_rules(edited)), "");

  // A group that says another scheme than its weights have.
  quantization(edited)["config_groups"]["group_0"]["weights"]["strategy"] = "channel";
  quantization(edited)["config_groups"]["group_0"]["weights"].erase("block_structure");
  const std::vector<Finding> findings = run_rules(edited);
  ASSERT_FALSE(findings.empty());
  for (const Finding& finding : findings) EXPECT_EQ(finding.rule, "ct.targets");
}

// docs/formats.md prints this block; older readers of it refuse nulls, loaders of today write them.
TEST(LoaderRules, AcceptEveryKeyThatCompressedTensorsWrites) {
  EditableCheckpoint edited =
      make_spelled({"compressed-tensors", SchemeId::kInt8Channel, Activations::kDynamic});
  quantization(edited)["config_groups"]["group_0"] = Json::parse(R"({
      "format": "int-quantized",
      "input_activations": {
        "actorder": null, "block_structure": null, "dynamic": true, "group_size": null,
        "num_bits": 8, "observer": null, "observer_kwargs": {}, "scale_dtype": null,
        "strategy": "token", "symmetric": true, "type": "int", "zp_dtype": null },
      "output_activations": null,
      "targets": ["Linear"],
      "weights": {
        "actorder": null, "block_structure": null, "dynamic": false, "group_size": null,
        "num_bits": 8, "observer": "memoryless_minmax", "observer_kwargs": {}, "scale_dtype": null,
        "strategy": "channel", "symmetric": true, "type": "int", "zp_dtype": null }})");
  quantization(edited)["sparsity_config"] = Json::object();
  quantization(edited)["transform_config"] = Json::object();
  EXPECT_EQ(text_of(run_rules(edited)), "");
}

TEST(LoaderRules, NameTheLargestDegreeThatCutsAtEdges) {
  // Rows of the dense MLP: 384 = 3 x 128, of experts: 128.
  std::map<std::string, std::string> messages;
  for (const Finding& finding : run_rules(make_synthetic(), {.tensor_parallel = 6})) {
    EXPECT_EQ(finding.rule, "cut.group-edge");
    messages[finding.tensor] = finding.message;
  }
  EXPECT_THAT(messages.at(kDense + "gate_proj.weight"), ::testing::HasSubstr("at most 3;"));
  EXPECT_THAT(messages.at(kMoe + "experts.0.gate_proj.weight"), ::testing::HasSubstr("at most 1;"));
  EXPECT_FALSE(messages.contains(kAttention + "q_a_proj.weight")) << "it is replicated";

  // Rows of 16 columns are fine, and INT8 needs only whole parts.
  const auto nvfp4 =
      make_spelled({"compressed-tensors", SchemeId::kNvfp4, Activations::kWeightOnly});
  EXPECT_EQ(text_of(run_rules(nvfp4, {.tensor_parallel = 8})), "");
  EXPECT_NE(text_of(run_rules(nvfp4, {.tensor_parallel = 16})), "");
  const auto int8 =
      make_spelled({"compressed-tensors", SchemeId::kInt8Channel, Activations::kDynamic});
  EXPECT_EQ(text_of(run_rules(int8, {.tensor_parallel = 4})), "");
}

TEST(LoaderRules, WarnOfHeadsThatRanksDoNotDivide) {
  const auto int8 =
      make_spelled({"compressed-tensors", SchemeId::kInt8Channel, Activations::kDynamic});
  const std::vector<Finding> findings = run_rules(int8, {.tensor_parallel = 8});
  ASSERT_FALSE(findings.empty());
  for (const Finding& finding : findings) {
    EXPECT_EQ(finding.rule, "cut.group-edge");
    EXPECT_THAT(finding.message, ::testing::HasSubstr("heads cannot be cut for --tp 8"));
  }
}

TEST(LoaderRules, CutRowsWithOneScaleAnywhere) {
  EditableCheckpoint rows = make_row_scaled({});
  EXPECT_EQ(text_of(run_rules(rows, {.tensor_parallel = 8})), "");
  // Groups of 32 do not mind 128 columns on 4 ranks, but on 8.
  const Spelled groups = {"compressed-tensors", SchemeId::kInt4Group, Activations::kWeightOnly};
  EXPECT_EQ(text_of(run_rules(make_spelled(groups), {.tensor_parallel = 4})), "");
  EXPECT_NE(text_of(run_rules(make_spelled(groups), {.tensor_parallel = 8})), "");
}

TEST(LoaderRules, WarnOfGroupsAsWideAsExperts) {
  const Spelled groups = {"compressed-tensors", SchemeId::kInt4Group, Activations::kWeightOnly};
  const auto text = [&](std::uint64_t ranks) {
    return text_of(run_all_rules(make_spelled(groups), {.tensor_parallel = ranks}));
  };
  EXPECT_EQ(text(1), "");
  EXPECT_EQ(text(2), "") << "64 of 128 rows, in groups of 32";
  EXPECT_THAT(text(4), ::testing::AllOf(::testing::HasSubstr("engine.options-of-vllm"),
                                        ::testing::HasSubstr("on 4 ranks"),
                                        ::testing::HasSubstr("--moe-backend humming"),
                                        ::testing::HasSubstr("--group-size of 32 or 64")));
  EXPECT_THAT(text(4), ::testing::HasSubstr(
                           "engine.options-of-vllm||model.layers.1.mlp.experts.0.gate_proj"));
  EXPECT_EQ(text_of(run_all_rules(make_row_scaled({}), {.tensor_parallel = 4})).find("garbage"),
            std::string::npos);
}

TEST(LoaderRules, AcceptInt8CodeMinus128) {
  EditableCheckpoint edited =
      make_spelled({"compressed-tensors", SchemeId::kInt8Channel, Activations::kDynamic});
  edited.at(kDense + "up_proj.weight").bytes[3] = std::byte{0x80};
  EXPECT_EQ(text_of(run_rules(edited)), "");
}

TEST(LoaderRules, ReadScalesOfEveryDtypeThatLoadersCopy) {
  EditableCheckpoint edited =
      make_spelled({"compressed-tensors", SchemeId::kInt8Channel, Activations::kDynamic});
  const std::string name = kAttention + "o_proj.weight_scale";
  for (const DType dtype : {DType::kBf16, DType::kF16}) {
    edited.put_zeros(name, dtype, edited.at(name).shape);
    ASSERT_EQ(run_rules(edited).size(), 1U);  // zeros
    for (std::size_t i = 1; i < edited.at(name).bytes.size(); i += 2)
      edited.at(name).bytes[i] = std::byte{0x2C};
    EXPECT_EQ(text_of(run_rules(edited)), "");
  }
}

// SGLang takes an entry that is a whole component of a name (modelopt_quant.py:379).
TEST(LoaderRules, TakeComponentsInModeloptsLists) {
  for (const bool is_component : {true, false}) {
    EditableCheckpoint checkpoint =
        make_spelled({"modelopt", SchemeId::kNvfp4, Activations::kStatic});
    for (Json* list :
         {&checkpoint.descriptions.at("hf_quant_config.json")["quantization"]["exclude_modules"],
          &checkpoint.config["quantization_config"]["ignore"]}) {
      for (Json& entry : *list) {
        if (entry == "*.self_attn*") entry = is_component ? "self_attn" : "self_att";
      }
    }
    EXPECT_EQ(text_of(run_all_rules(checkpoint)).find("component") == std::string::npos,
              is_component);
  }
}

// Only Step's draft model has its decoder behind mtp_block.
TEST(LoaderRules, AskForNoNamesThatVllmDoesNotLookUp) {
  EditableCheckpoint checkpoint =
      make_spelled({"compressed-tensors", SchemeId::kInt8Channel, Activations::kDynamic});
  make_weight_plain(checkpoint, "model.layers.2.self_attn.o_proj.weight");
  checkpoint.config["quantization_config"]["ignore"].push_back("model.layers.2.self_attn.o_proj");
  EXPECT_EQ(text_of(run_all_rules(checkpoint)).find("mtp_block"), std::string::npos);
}

TEST(LoaderRules, AreThoseOfTheDialectAtHand) {
  // No section `quantization`: modelopt.required-keys would say so.
  EditableCheckpoint edited =
      make_spelled({"compressed-tensors", SchemeId::kInt8Channel, Activations::kDynamic});
  edited.descriptions["hf_quant_config.json"] = Json::object();
  EXPECT_EQ(only(run_rules(edited)).rule, "quantized.one-block");
}

// Puts the config that our writers derive from a model's weights in place of the one written by
// hand.
void derive_config(EditableCheckpoint& edited, const Dialect& dialect, const StorageRow& row) {
  const TempDir dir;
  edited.write(dir.path());
  const Checkpoint checkpoint = Checkpoint::open(dir.path());
  std::vector<WrittenTensor> written;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    WrittenTensor& one = written.emplace_back();
    one.name = tensor.name;
    one.scheme = tensor.encoding.scheme;
    one.activations = row.activations;
    one.rule = tensor.rule;
    one.layer = tensor.layer;
    one.expert = tensor.expert;
    one.rank = tensor.shape.size();
    if (scheme_facts(one.scheme).quantized)
      one.block = {tensor.encoding.block_rows, tensor.encoding.block_cols};
    tensor.encoding.stored.for_each(
        [&](Part, std::uint32_t index) { one.stored.push_back(checkpoint.stored()[index].name); });
  }
  ModelConfig source = checkpoint.config();
  source.quantization.reset();
  Json raw = *source.raw;
  raw.erase("quantization_config");
  source.raw = std::move(raw);
  const WrittenModel model = {.source = source, .description = nullptr, .tensors = written};
  const Json block = dialect.quantization_config(model);
  if (block.is_null()) {
    edited.config.erase("quantization_config");
  } else {
    edited.config["quantization_config"] = block;
  }
  edited.descriptions = EditableCheckpoint().descriptions;
  if (dialect.description != nullptr)
    edited.descriptions[std::string(dialect.description_file)] = dialect.description(model);
}

TEST(LoaderRules, AcceptWhatEveryDialectDerives) {
  for (const Dialect* dialect : dialects()) {
    for (const StorageRow& row : dialect->storage) {
      if (row.experts == formats::ExpertForm::kStacked) continue;  // this model has none
      SCOPED_TRACE(std::string(dialect->name) + " " + std::string(scheme_facts(row.scheme).name) +
                   " " + std::string(activations_name(row.activations)));
      EditableCheckpoint edited =
          make_spelled({std::string(dialect->name), row.scheme, row.activations});
      derive_config(edited, *dialect, row);
      EXPECT_EQ(other_complaints(run_all_rules(edited), *dialect, row), "")
          << edited.config["quantization_config"].dump();
    }
  }
}

// Every key of a dialect's JSON by every kind of value: findings, never another exception.
TEST(LoaderRules, ReadAnyJson) {
  const Json odd_values = {nullptr,
                           true,
                           -1,
                           1.5,
                           "x",
                           "re:(",
                           Json::array(),
                           Json::object(),
                           {1, "a"},
                           {{"a", {{"b", 1}}}}};
  const std::map<std::string, std::vector<std::string>> places = {
      {"compressed-tensors",
       {"/config_groups", "/ignore", "/format", "/config_groups/group_0",
        "/config_groups/group_0/targets", "/config_groups/group_0/weights",
        "/config_groups/group_0/format", "/config_groups/group_0/weights/num_bits",
        "/config_groups/group_0/weights/type", "/config_groups/group_0/weights/strategy",
        "/config_groups/group_0/weights/group_size", "/config_groups/group_0/input_activations",
        "/config_groups/group_0/input_activations/dynamic"}},
      {"modelopt",
       {"/quantization", "/quantization/quant_algo", "/quantization/exclude_modules",
        "/quantization/group_size", "/quantization/quantized_layers"}},
      {"modelslim", {"/model_quant_type", "/lm_head.weight", "/model.layers.0.x"}}};
  for (const auto& [dialect, pointers] : places) {
    const SchemeId scheme = dialect == "modelopt" ? SchemeId::kNvfp4 : SchemeId::kInt8Channel;
    const EditableCheckpoint sound = make_spelled({dialect, scheme, Activations::kStatic});
    for (const std::string& pointer : pointers) {
      for (const Json& value : odd_values) {
        SCOPED_TRACE(dialect + " " + pointer + " = " + value.dump());
        EditableCheckpoint edited = sound;
        Json& owner = edited.descriptions.size() == 1 ? quantization(edited)
                                                      : edited.descriptions.begin()->second;
        owner[Json::json_pointer(pointer)] = value;
        try {
          run_rules(edited, {.most_bytes = 0});
        } catch (const Error&) {
          // Said by the structure too.
        }
      }
    }
  }
}

}  // namespace
}  // namespace ingot::formats
