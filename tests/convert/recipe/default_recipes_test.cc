#include "convert/recipe/default_recipes.h"

#include "check/rules/loader_rules.h"
#include "convert/plan/plan.h"
#include "convert/plan/repair.h"
#include "engines/limits.h"
#include "formats/dialect/dialect.h"
#include "formats/family/families.h"
#include "formats/json/json.h"
#include "tests/check/editable_checkpoint.h"
#include "tests/convert/conversion.h"
#include "tests/convert/targets.h"
#include "tests/support/test.h"

// Which tensors the default recipes select, by family, target and dialect.

namespace ingot::convert {
namespace {

using namespace formats;
using namespace ingot::testing;
using Schemes = std::set<SchemeId>;
using formats::SchemeId;

// The scheme of every tensor of the plan, and its action.
struct Planned {
  Plan plan;
  std::map<std::string, SchemeId> scheme;
  std::map<std::string, Action> action;

  // Names that end so and have a scheme.
  [[nodiscard]] std::set<SchemeId> schemes_of(const std::string& fragment) const {
    std::set<SchemeId> found;
    for (const auto& [name, id] : scheme) {
      if (name.find(fragment) != std::string::npos) found.insert(id);
    }
    return found;
  }
};

Planned planned(const std::filesystem::path& input, Recipe recipe) {
  const auto source = formats::Checkpoint::open(input);
  resolve(recipe, source);
  Planned result{.plan = plan_for(source, recipe)};
  for (const PlannedTensor& tensor : result.plan.tensors) {
    const std::string& name = source.tensors()[tensor.tensor].name;
    result.action[name] = tensor.action;
    if (tensor.action != Action::kDrop) result.scheme[name] = tensor.to;
  }
  return result;
}

Recipe to(SchemeId scheme, const std::string& dialect = "") {
  Recipe recipe;
  recipe.to = scheme;
  recipe.choices.dialect = dialect;
  if (dialect == "modelopt" && scheme == SchemeId::kNvfp4)
    recipe.choices.activations = formats::Activations::kWeightOnly;
  return recipe;
}

const Schemes kBf16Only = {SchemeId::kBf16};

// A copy of the example's files that may be changed.
EditableCheckpoint example() {
  EditableCheckpoint checkpoint = EditableCheckpoint::load(tiny_v32());
  checkpoint.descriptions.clear();
  return checkpoint;
}

// Leaves out the experts from `n` on of a layer, and their rows of its router.
void prune(EditableCheckpoint& checkpoint, std::uint32_t layer, std::uint64_t n) {
  const std::string mlp = fmt::format("model.layers.{}.mlp.", layer);
  for (std::uint64_t expert = n; expert < 16; ++expert)
    checkpoint.erase_prefix(fmt::format("{}experts.{}.", mlp, expert));
  for (const char* name : {"gate.weight", "gate.e_score_correction_bias"}) {
    EditableCheckpoint::Tensor& tensor = checkpoint.at(mlp + name);
    tensor.bytes.resize(tensor.bytes.size() / tensor.shape[0] * n);
    tensor.shape[0] = n;
  }
}

class FamilyRecipes : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Families, FamilyRecipes,
                         ::testing::Values("deepseek_v3", "deepseek_v32", "deepseek_v2", "kimi_k2",
                                           "qwen3_moe", "glm_moe_dsa"),
                         [](const auto& row) { return row.param; });

TEST_P(FamilyRecipes, NeverQuantizeEmbeddingHeadNormsOrRouter) {
  const TempDir directory;
  const auto input = synth_tiny(directory / "in", GetParam());
  const auto before = formats::Checkpoint::open(input);
  for (const ingot::testing::Target& target : scheme_targets()) {
    Recipe recipe;
    target.apply(recipe);
    recipe.mtp = MtpPolicy::kConvert;
    recipe.choices.quantize_attention = true;
    const Planned result = planned(input, recipe);
    std::size_t n_never = 0, n_quantized = 0;
    for (const formats::LogicalTensor& tensor : before.tensors()) {
      const std::string& name = tensor.name;
      const bool is_never =
          name.find("norm") != name.npos || name.find("embed_tokens") != name.npos ||
          name.find("lm_head") != name.npos || name.find("shared_head") != name.npos ||
          name.find("mlp.gate.") != name.npos || name.find("weights_proj") != name.npos ||
          name.find("eh_proj") != name.npos;
      const bool is_quantized = result.action.at(name) == Action::kQuantize;
      if (is_never) {
        ++n_never;
        EXPECT_EQ(result.action.at(name), Action::kCopy) << target << " " << name;
      }
      n_quantized += is_quantized ? 1U : 0U;
      EXPECT_TRUE(!is_quantized || name.ends_with("_proj.weight") ||
                  name.ends_with("wq_b.weight") || name.ends_with("wk.weight") ||
                  name.ends_with("kv_a_proj_with_mqa.weight"))
          << name;
    }
    EXPECT_GT(n_never, 8U);
    // FP8 blocks that are FP8 blocks already are kept.
    const bool is_kept = target.storage->scheme == SchemeId::kFp8Block;
    EXPECT_EQ(n_quantized > 15, !is_kept) << target;
  }
}

TEST_P(FamilyRecipes, Nvfp4TakesMlpsAndLeavesAttentionUnlessAsked) {
  const TempDir directory;
  const auto input = synth_tiny(directory / "in", GetParam());
  for (const bool is_asked : {false, true}) {
    Recipe recipe = to(SchemeId::kNvfp4);
    recipe.choices.quantize_attention = is_asked;
    const Planned result = planned(input, recipe);
    const auto source = formats::Checkpoint::open(input);
    for (const auto& [name, scheme] : result.scheme) {
      const std::uint64_t n_layers = source.config().num_hidden_layers;
      const bool is_mtp = name.starts_with("model.layers." + std::to_string(n_layers) + ".");
      const bool is_mlp = name.find(".mlp.") != name.npos && name.ends_with("_proj.weight");
      const bool is_attention = name.find("self_attn.") != name.npos &&
                                (name.ends_with("_proj.weight") || name.ends_with("_mqa.weight")) &&
                                !name.ends_with("kv_b_proj.weight") &&
                                name.find("indexer") == name.npos;
      if (is_mtp) {
        EXPECT_NE(scheme, SchemeId::kNvfp4) << name;
        EXPECT_NE(scheme, SchemeId::kFp8Block) << name << " becomes BF16";
      } else {
        EXPECT_EQ(scheme == SchemeId::kNvfp4, is_mlp || (is_asked && is_attention)) << name;
      }
    }
  }
}

TEST(DefaultRecipes, AscendKeepsKvBAndIndexerInBf16) {
  const Planned ascend = planned(tiny_v32(), to(SchemeId::kInt8Channel, "modelslim"));
  for (const char* left : {"kv_b_proj.weight", "indexer.wq_b.weight", "indexer.wk.weight"})
    EXPECT_EQ(ascend.schemes_of(left), kBf16Only) << left;
  const Planned vllm = planned(tiny_v32(), to(SchemeId::kInt8Channel));
  EXPECT_EQ(vllm.schemes_of("kv_b_proj.weight"), Schemes{SchemeId::kInt8Channel});
  EXPECT_EQ(vllm.schemes_of("indexer.wq_b.weight"), Schemes{SchemeId::kInt8Channel});
  EXPECT_EQ(vllm.schemes_of("indexer.wk.weight"), kBf16Only);
  for (const Planned* both : {&ascend, &vllm})
    EXPECT_EQ(both->schemes_of("o_proj.weight"), Schemes{SchemeId::kInt8Channel});
}

TEST(DefaultRecipes, Fp8KeepsEveryTensorOfTheExample) {
  const Planned fp8 = planned(tiny_bf16(), to(SchemeId::kFp8Block));
  const auto released = formats::Checkpoint::open(tiny_v32());
  for (const formats::LogicalTensor& tensor : released.tensors())
    EXPECT_EQ(fp8.scheme.at(tensor.name), tensor.encoding.scheme) << tensor.name;
}

TEST(DefaultRecipes, MtpLayersDefaultToBf16ForFourBits) {
  const std::string expert = "model.layers.5.mlp.experts.3.down_proj.weight";
  const auto mtp = [&](SchemeId scheme, std::optional<MtpPolicy> policy) {
    Recipe recipe = to(scheme);
    recipe.mtp = policy;
    const Planned result = planned(tiny_v32(), recipe);
    return result.scheme.contains(expert) ? std::optional(result.scheme.at(expert)) : std::nullopt;
  };
  for (const SchemeId four_bits : {SchemeId::kNvfp4, SchemeId::kMxfp4}) {
    EXPECT_EQ(mtp(four_bits, std::nullopt), SchemeId::kBf16);
    EXPECT_EQ(mtp(four_bits, MtpPolicy::kConvert), four_bits);
    EXPECT_EQ(mtp(four_bits, MtpPolicy::kBf16), SchemeId::kBf16);
    EXPECT_EQ(mtp(four_bits, MtpPolicy::kKeep), SchemeId::kFp8Block);
    EXPECT_EQ(mtp(four_bits, MtpPolicy::kDrop), std::nullopt);
  }
  EXPECT_EQ(mtp(SchemeId::kInt8Channel, std::nullopt), SchemeId::kInt8Channel);
  EXPECT_EQ(mtp(SchemeId::kInt8Channel, MtpPolicy::kBf16), SchemeId::kBf16);
}

TEST(DefaultRecipes, DroppedMtpLayersLeaveTheConfigToo) {
  const TempDir directory;
  Conversion conversion(tiny_v32(), directory / "out");
  conversion.recipe = to(SchemeId::kInt8Channel);
  conversion.recipe.mtp = MtpPolicy::kDrop;
  conversion.run();
  const auto config = formats::read_json_file(directory / "out" / "config.json", 1 << 20);
  EXPECT_EQ(config.at("num_nextn_predict_layers"), 0);
  for (const auto& [name, bytes] : tensor_bytes(directory / "out"))
    EXPECT_FALSE(name.starts_with("model.layers.5.")) << name;
}

TEST(DefaultRecipes, LeftoverFp8StaysOnlyInDialectsOfMixtures) {
  const auto released = formats::Checkpoint::open(tiny_v32());
  const Planned mixed = planned(tiny_v32(), to(SchemeId::kNvfp4));
  EXPECT_EQ(mixed.plan.counts.demoted, 0U);
  EXPECT_EQ(mixed.schemes_of("o_proj.weight"), (Schemes{SchemeId::kFp8Block, SchemeId::kBf16}))
      << "BF16 in the MTP layer";
  EXPECT_EQ(mixed.schemes_of("model.layers.0.self_attn.o_proj"), Schemes{SchemeId::kFp8Block});

  const Planned modelopt = planned(tiny_v32(), to(SchemeId::kNvfp4, "modelopt"));
  // Layers 0 to 4: five projections of attention and two of the indexer, besides q_b.
  EXPECT_EQ(modelopt.plan.counts.demoted, 5U * 7);
  EXPECT_EQ(modelopt.schemes_of("o_proj.weight"), kBf16Only);
  EXPECT_EQ(modelopt.schemes_of("kv_b_proj.weight"), kBf16Only);

  for (const char* dialect : {"modelslim", "deepseek"}) {
    Recipe recipe;
    recipe.choices.dialect = dialect;
    const bool is_deepseek_mp = std::string_view(dialect) == "deepseek";
    recipe.rules = {parse_rule(std::string("model.layers.*.mlp.*_proj.weight=") +
                               (is_deepseek_mp ? "int8-block" : "int8"))};
    const Planned result = planned(tiny_v32(), recipe);
    EXPECT_EQ(result.plan.counts.demoted, 6U * 7) << dialect;
    EXPECT_EQ(result.schemes_of("self_attn.o_proj.weight"), kBf16Only) << dialect;
  }
}

TEST(DefaultRecipes, SeveralSchemesNeedADialectOfMixtures) {
  Recipe recipe = to(SchemeId::kNvfp4);
  recipe.rules = {parse_rule("re:model.layers.*.self_attn.o_proj.weight=int8"),
                  parse_rule("*.kv_b_proj.weight=fp8-channel")};
  const Planned mixed = planned(tiny_v32(), recipe);
  EXPECT_EQ(mixed.schemes_of("layers.0.self_attn.o_proj.weight"), Schemes{SchemeId::kInt8Channel});
  EXPECT_EQ(mixed.schemes_of("layers.0.self_attn.kv_b_proj.weight"),
            Schemes{SchemeId::kFp8Channel});
  EXPECT_EQ(mixed.schemes_of("layers.0.mlp.up_proj.weight"), Schemes{SchemeId::kNvfp4});
  recipe.choices.dialect = "modelopt";
  recipe.choices.activations = formats::Activations::kWeightOnly;
  expect_error(ErrorCode::kUnsupported, {"modelopt cannot hold int8-channel"},
               [&] { planned(tiny_v32(), recipe); });
  recipe.choices.dialect = "deepseek";
  expect_error(ErrorCode::kUnsupported, {"deepseek", "--dialect compressed-tensors"},
               [&] { planned(tiny_v32(), recipe); });
}

TEST(DefaultRecipes, ModelsWithoutExpertsBecomeFourBitsWhole) {
  const std::filesystem::path golden = INGOT_SOURCE_DIR "/tests/golden/families";
  for (const SchemeId scheme : {SchemeId::kNvfp4, SchemeId::kMxfp4}) {
    const Planned dense = planned(golden / "llama_gptq", to(scheme));
    for (const char* name : {"self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down"})
      EXPECT_EQ(dense.schemes_of(name), Schemes{scheme}) << name;
    EXPECT_EQ(dense.schemes_of("lm_head"), Schemes{SchemeId::kF16});
    EXPECT_EQ(dense.schemes_of("embed_tokens"), Schemes{SchemeId::kF16});
    const Planned mixture = planned(golden / "mixtral_awq", to(scheme));
    EXPECT_FALSE(mixture.schemes_of("self_attn.q_proj").contains(scheme));
    EXPECT_EQ(mixture.schemes_of("experts.0.w2"), Schemes{scheme});
  }
}

TEST(DefaultRecipes, EveryLineHasATargetInSomeDialect) {
  for (const DefaultRecipeLine& line : default_recipe_lines()) {
    EXPECT_NE(line.group, RoleGroup::kNever);
    EXPECT_FALSE(line.reason.empty());
    if (line.dialect.empty()) continue;
    const formats::Dialect* dialect = formats::find_dialect(line.dialect);
    ASSERT_NE(dialect, nullptr) << line.dialect;
    // That of a family's own dialect may hold more.
    const formats::Family& family = *formats::find_family("deepseek_v4");
    EXPECT_NE(formats::find_storage(*dialect, family, line.to), nullptr) << line.dialect;
  }
}

// The plan refuses everything that engines refuse, unless it is asked for by name.

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
  expect_error(ErrorCode::kUnsupported, {fact, "vLLM 0.33", "SGLang 0.5.23", "engine-refuses"},
               [&] { plan_of(asked); });
}

constexpr const char* kCt = "compressed-tensors";
constexpr const char* kExperts = "model.layers.*.mlp.experts.*=bf16";

// Each of these was given to both engines with experts, and loaded in neither.
TEST(EngineRefusals, NameEngineVersionAndReason) {
  using enum SchemeId;
  using enum Activations;
  expect_refused({kFp8Block, kCt, kWeightOnly}, "no scheme for FP8 linears in blocks");
  expect_refused({.to = kFp8Block, .dialect = kCt, .activations = kWeightOnly, .rules = {kExperts}},
                 "asserts after loading");
  expect_refused({kFp8Tensor, kCt, kDynamic}, "it loads dialect deepseek");
  expect_refused({kFp8Tensor, kCt, kWeightOnly}, "number of bits");
  expect_refused({kFp8Channel, kCt, kWeightOnly}, "pack-quantized");
  expect_refused({kInt8Channel, kCt, kWeightOnly}, "only with quantized activations");
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
        // Engines refuse only the experts of these, and here they have none.
        Asked{.to = kFp8Tensor, .dialect = kCt, .activations = kWeightOnly, .rules = {kExperts}},
        Asked{
            .to = kFp8Channel, .dialect = kCt, .activations = kWeightOnly, .rules = {kExperts}}}) {
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

// No loader of mixtures builds them quantized, whatever the config says; heads where no config of
// the dialect can say that they are.
TEST_P(PlainModules, AreRefusedInThePlan) {
  std::vector<std::string> roles = {"embedding", "router", "mtp-proj", "indexer-weights"};
  if (formats::find_dialect(GetParam())->heads == formats::Heads::kPlain)
    roles.insert(roles.end(), {"head", "mtp-head"});
  for (const std::string& role : roles) {
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

TEST(PlainModules, HeadsMayBeQuantizedWhereConfigsNameThem) {
  const std::string input = INGOT_SOURCE_DIR "/tests/golden/families/glm4_moe_fp8_channel";
  for (const char* rule : {"role:mtp-head=int8", "role:head=int8"}) {
    const Asked asked = {.to = SchemeId::kInt8Channel, .rules = {rule}};
    EXPECT_NO_THROW(static_cast<void>(plan_of(asked, input))) << rule;
  }
}

TEST(UncountedMtp, IsRefusedDroppedOrMended) {
  const TempDir directory;
  EditableCheckpoint checkpoint = example();
  for (const Json& said : {Json(0), Json(nullptr)}) {
    checkpoint.config["num_nextn_predict_layers"] = said;
    checkpoint.write(directory.path());
    Recipe recipe = to(SchemeId::kBf16);
    expect_error(ErrorCode::kMismatch, {"num_nextn_predict_layers 0", "--mtp drop", "repair"},
                 [&] { planned(directory.path(), recipe); });
    recipe.mtp = MtpPolicy::kDrop;
    for (const auto& [name, scheme] : planned(directory.path(), recipe).scheme)
      EXPECT_FALSE(name.starts_with("model.layers.5.")) << name;

    const auto source = formats::Checkpoint::open(directory.path());
    EXPECT_EQ(source.config().num_nextn_predict_layers, 1U);
    Recipe repair;
    repair.choices.repair = std::make_shared<const RepairFacts>(convert::read_repair_facts(source));
    resolve(repair, source);
    EXPECT_EQ(parse_json(plan_for(source, repair).json.config, "")["num_nextn_predict_layers"], 1);
  }
}

TEST(PrunedExperts, AreJudgedOnlyInLayersThatStay) {
  const TempDir directory;
  EditableCheckpoint checkpoint = example();
  checkpoint.config["n_routed_experts"] = 12;
  for (std::uint32_t layer = 1; layer < 5; ++layer) prune(checkpoint, layer, 12);
  checkpoint.write(directory.path());
  Recipe recipe = to(SchemeId::kBf16);
  expect_error(ErrorCode::kShapeMismatch,
               {"layer 5 (MTP) has 16 experts, config.json says 12", "--mtp drop"},
               [&] { planned(directory.path(), recipe); });
  recipe.mtp = MtpPolicy::kDrop;
  const Planned dropped = planned(directory.path(), recipe);
  EXPECT_EQ(dropped.action.at("model.layers.5.mlp.experts.15.up_proj.weight"), Action::kDrop);
  EXPECT_EQ(dropped.action.at("model.layers.5.mlp.gate.weight"), Action::kDrop);

  prune(checkpoint, 3, 8);
  checkpoint.write(directory.path());
  expect_error(ErrorCode::kShapeMismatch, {"layer 3 has 8 experts, config.json says 12"},
               [&] { planned(directory.path(), recipe); });
}

TEST(OwnListOfTheSource, LeavesModulesPlainUnlessARuleAsks) {
  const TempDir directory;
  Conversion conversion(tiny_v32(), directory / "in");
  conversion.recipe = to(SchemeId::kFp8Block);
  conversion.recipe.rules = {parse_rule("role:kv-b-proj=bf16")};
  conversion.run();
  const std::string module = "model.layers.0.self_attn.kv_b_proj";
  const auto lists = [&](const Planned& result) {
    const Json config = parse_json(result.plan.json.config, "");
    const Json& listed = config["quantization_config"]["modules_to_not_convert"];
    return std::find(listed.begin(), listed.end(), Json(module)) != listed.end();
  };
  const Planned again = planned(directory / "in", to(SchemeId::kFp8Block));
  EXPECT_EQ(again.scheme.at(module + ".weight"), SchemeId::kBf16);
  EXPECT_TRUE(lists(again));
  EXPECT_THAT(again.plan.warnings,
              ::testing::Contains(::testing::HasSubstr("source's own list of modules")));
  Recipe asked = to(SchemeId::kFp8Block);
  asked.rules = {parse_rule("role:kv-b-proj=fp8-block")};
  const Planned all = planned(directory / "in", asked);
  EXPECT_EQ(all.scheme.at(module + ".weight"), SchemeId::kFp8Block);
  EXPECT_FALSE(lists(all));
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

TEST(DefaultRecipe, GatesThatEnginesJoinAreQuantizedAsQueries) {
  const auto of = [](const char* family) {
    Recipe recipe = to(SchemeId::kFp8Channel);
    recipe.rules = {make_rule("role:experts", "bf16", RuleOrigin::kRule)};
    return planned(
        std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden/forward" / family / "checkpoint",
        recipe);
  };
  for (const char* family : {"beam", "muse_spark"}) {
    const Planned plan = of(family);
    EXPECT_EQ(plan.schemes_of("self_attn.gate_proj"), Schemes{SchemeId::kFp8Channel}) << family;
    EXPECT_EQ(plan.schemes_of("self_attn.q_proj"), Schemes{SchemeId::kFp8Channel}) << family;
  }
  // A module of its own in both engines.
  EXPECT_EQ(of("afmoe").schemes_of("self_attn.gate_proj"), kBf16Only);
}

}  // namespace
}  // namespace ingot::convert
