#include "convert/recipe/engine_choice.h"

#include "convert/convert.h"
#include "convert/output/planned_checkpoint.h"
#include "convert/plan/repair.h"
#include "engines/versions/versions.h"
#include "formats/family/families.h"
#include "formats/json/json.h"
#include "tests/convert/conversion.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/tiny_tokenizer.h"

namespace ingot::convert {
namespace {

using namespace ingot::testing;
using engines::Engine;
using formats::Activations;
using formats::Checkpoint;
using formats::SchemeId;

Plan plan_for_engine(const Checkpoint& source, Engine engine, std::optional<SchemeId> to,
                     Recipe recipe = {}) {
  recipe.to = to;
  recipe.choices.engine = &engines::newest(engine);
  return plan_conversion(source, std::move(recipe), {});
}

const engines::EngineVerdict& verdict_of(const Loadable& loadable, Engine engine) {
  return loadable.engines.at(static_cast<std::size_t>(engine));
}

// Whatever --for accepts, the planned output passes that engine's own rows.
TEST(ForAnEngine, EverySchemeThatItTakesLoads) {
  const Checkpoint source = Checkpoint::open(tiny_v32());
  std::size_t n_planned = 0;
  for (const engines::EngineRow* engine : engines::engines()) {
    for (const formats::SchemeFacts& scheme : formats::schemes()) {
      if (scheme.to_word.empty()) continue;
      SCOPED_TRACE(std::string(engine->name) + " " + std::string(scheme.name));
      Recipe recipe;
      recipe.choices.input_scale = 1.0F;  // for those that take only static activations
      try {
        const Plan plan = plan_for_engine(source, engine->engine, scheme.id, recipe);
        const Loadable loadable = require_loadable(plan, 1);
        EXPECT_TRUE(verdict_of(loadable, engine->engine).loads)
            << verdict_of(loadable, engine->engine).reason;
        ++n_planned;
      } catch (const Error& refusal) {
        EXPECT_TRUE(refusal.code() == ErrorCode::kUnsupported) << refusal.message();
        EXPECT_THAT(refusal.message(), ::testing::HasSubstr(std::string(engine->name)));
      }
    }
  }
  EXPECT_GT(n_planned, 20U);
}

TEST(ForAnEngine, ChoosesDialectAndActivations) {
  const Checkpoint source = Checkpoint::open(tiny_v32());
  Recipe scaled;
  scaled.choices.input_scale = 1.0F;
  const auto dialect = [&](Engine engine, SchemeId to, const Recipe& recipe = {}) {
    return std::string(plan_for_engine(source, engine, to, recipe).target.dialect->name);
  };
  EXPECT_EQ(dialect(Engine::kVllm, SchemeId::kInt8Channel), "compressed-tensors");
  EXPECT_EQ(dialect(Engine::kVllmAscend, SchemeId::kInt8Channel), "modelslim");
  EXPECT_EQ(dialect(Engine::kVllm, SchemeId::kNvfp4), "compressed-tensors");
  const Plan plan = plan_for_engine(source, Engine::kTrtllm, SchemeId::kNvfp4, scaled);
  EXPECT_EQ(plan.target.dialect->name, "modelopt");
  EXPECT_EQ(plan.recipe.choices.activations, Activations::kStatic);
  EXPECT_EQ(plan.recipe.to_json()["choices"]["for"], "trtllm");
}

TEST(ForAnEngine, AnOptionIsNamedWhereTheEngineNeedsOne) {
  const Checkpoint source = Checkpoint::open(tiny_v32());
  const Plan plan = plan_for_engine(source, Engine::kSglang, SchemeId::kInt8Channel);
  EXPECT_THAT(verdict_of(require_loadable(plan, 1), Engine::kSglang).options,
              ::testing::ElementsAre("--quantization w8a8_int8"));
  const Plan ascend = plan_for_engine(source, Engine::kVllmAscend, SchemeId::kInt8Channel);
  EXPECT_THAT(verdict_of(require_loadable(ascend, 1), Engine::kVllmAscend).options,
              ::testing::ElementsAre("--quantization ascend"));
}

TEST(ForAnEngine, RefusesWithWhatItLoadsInstead) {
  const Checkpoint source = Checkpoint::open(tiny_v32());
  expect_error(ErrorCode::kUnsupported,
               {"vLLM 0.33", "int8-block", "blockwise_int8", "fp8-block", "ingot list loads"},
               [&] { plan_for_engine(source, Engine::kVllm, SchemeId::kInt8Block); });
  expect_error(ErrorCode::kUnsupported, {"SGLang 0.5.23", "mxfp8"},
               [&] { plan_for_engine(source, Engine::kSglang, SchemeId::kMxfp8); });
  Recipe mixed;
  mixed.rules.push_back(parse_rule("role:experts=int8"));
  expect_error(ErrorCode::kUnsupported, {"transformers 5", "int8-block"}, [&] {
    plan_for_engine(source, Engine::kTransformers, SchemeId::kInt8Block, mixed);
  });
}

TEST(ForAnEngine, RefusesWhatContradictsIt) {
  const Checkpoint source = Checkpoint::open(tiny_v32());
  const auto refuse = [&](const auto& change, std::initializer_list<std::string> facts) {
    Recipe recipe;
    change(recipe.choices);
    expect_error(ErrorCode::kInvalidArgument, facts,
                 [&] { plan_for_engine(source, Engine::kVllm, SchemeId::kInt8Channel, recipe); });
  };
  refuse([](Choices& choices) { choices.dialect = "modelslim"; },
         {"vLLM 0.33", "--dialect modelslim", "compressed-tensors (dynamic)"});
  refuse([](Choices& choices) { choices.activations = Activations::kWeightOnly; },
         {"--activations weight-only", "(dynamic)", "leave --activations out"});
  Recipe recipe;
  recipe.to = SchemeId::kBf16;
  recipe.choices.engine = &engines::kVllmRow;
  PlanOptions sliced;
  sliced.layout = formats::find_layout("ranks");
  expect_error(ErrorCode::kInvalidArgument, {"no files of layout"},
               [&] { plan_conversion(source, recipe, sliced); });
}

TEST(ForAnEngine, ABackendOfExpertsGoesWithMixtures) {
  const Checkpoint source = Checkpoint::open(tiny_v32());
  Recipe recipe;
  recipe.choices.group_size = 0;
  recipe.rules = {parse_rule("role:experts=int4"), parse_rule("role:linear=fp8-channel")};
  const Plan plan = plan_for_engine(source, Engine::kVllm, std::nullopt, recipe);
  const engines::EngineVerdict vllm = verdict_of(require_loadable(plan, 1), Engine::kVllm);
  EXPECT_TRUE(vllm.loads) << vllm.reason;
  EXPECT_THAT(vllm.options, ::testing::ElementsAre("--moe-backend marlin"));
}

// The bundled model has experts of 128 and a hidden size of 256.
TEST(ForAnEngine, WarnsOfABackendThatIsWrong) {
  const Checkpoint source = Checkpoint::open(tiny_v32());
  const auto warnings = [&](const char* group) {
    Recipe recipe;
    take_option("--group-size", group, recipe);
    const Plan plan = plan_for_engine(source, Engine::kVllm, SchemeId::kInt4Group, recipe);
    return require_loadable(plan, 1).warnings;
  };
  EXPECT_THAT(warnings("128"), ::testing::Contains(::testing::Field(&check::Finding::rule,
                                                                    "engine.options-of-vllm")));
  EXPECT_THAT(warnings("64"), ::testing::IsEmpty());
}

TEST(ForAnEngine, NotesScalesThatAreRoundedOn) {
  const Checkpoint source = Checkpoint::open(tiny_v32());
  for (const char* dialect : {"deepseek", "compressed-tensors"}) {
    const auto notes = [&](quantize::Fp8Grid grid) {
      Recipe recipe;
      recipe.choices.dialect = dialect;
      recipe.choices.fp8_grid = grid;
      const Plan plan = plan_for_engine(source, Engine::kVllm, SchemeId::kFp8Block, recipe);
      return verdict_of(require_loadable(plan, 1), Engine::kVllm).notes;
    };
    EXPECT_THAT(notes(quantize::Fp8Grid::kAmax),
                ::testing::ElementsAre(::testing::HasSubstr("--fp8-grid ue8m0")));
    EXPECT_THAT(notes(quantize::Fp8Grid::kUe8m0), ::testing::IsEmpty());
  }
}

// An option is about all weights, so it does not go with a mixture.
TEST(ForAnEngine, AnOptionIsForOneSchemeAlone) {
  const Checkpoint source = Checkpoint::open(tiny_v32());
  Recipe mixed;
  mixed.rules = {parse_rule("role:mlp=int8"), parse_rule("role:linear=fp8")};
  const Plan plan = plan_for_engine(source, Engine::kVllm, std::nullopt, mixed);
  const Loadable loadable = require_loadable(plan, 1);
  EXPECT_TRUE(verdict_of(loadable, Engine::kVllm).loads);
  EXPECT_FALSE(verdict_of(loadable, Engine::kSglang).loads);
  EXPECT_THAT(verdict_of(loadable, Engine::kSglang).reason,
              ::testing::HasSubstr("--quantization w8a8_int8"));
}

// Weights that no rule chose are judged with the whole output.
TEST(ForAnEngine, RefusesWhatStaysBesideTheChoice) {
  const Checkpoint source = Checkpoint::open(tiny_v32());
  const auto load = [&](const char* rule) {
    Recipe recipe;
    recipe.rules.push_back(parse_rule(rule));
    const Plan plan = plan_for_engine(source, Engine::kSglang, std::nullopt, recipe);
    return verdict_of(require_loadable(plan, 1), Engine::kSglang).loads;
  };
  EXPECT_TRUE(load("role:experts=int4"));
  // It joins the projections that make MLA's latents.
  expect_error(ErrorCode::kUnsupported, {"SGLang", "weight_shape", "--rule"},
               [&] { load("role:attention=int4"); });
  expect_error(ErrorCode::kUnsupported, {"SGLang", "Kimi-K3"}, [&] { load("role:experts=mxfp4"); });
}

// transformers reads one scheme for all routed experts, whatever `ignore` says of them.
TEST(ForAnEngine, RefusesWhatItWouldTakeForAnotherScheme) {
  const Checkpoint source = Checkpoint::open(tiny_v32());
  const auto load = [&](SchemeId to, const char* experts) {
    Recipe recipe;
    recipe.rules.push_back(parse_rule(experts));
    const Plan plan = plan_for_engine(source, Engine::kTransformers, to, recipe);
    return verdict_of(require_loadable(plan, 1), Engine::kTransformers).loads;
  };
  EXPECT_TRUE(load(SchemeId::kFp8Channel, "role:experts=int4"));
  EXPECT_TRUE(load(SchemeId::kFp8Channel, "role:experts=bf16"));
  expect_error(ErrorCode::kUnsupported, {"transformers", "is plain, and read as mxfp4", "--rule"},
               [&] { load(SchemeId::kMxfp4, "role:experts=bf16"); });
}

TEST(ForAnEngine, ASourceThatItLoadsStaysAsItIs) {
  const Checkpoint source = Checkpoint::open(tiny_v32());
  const Plan plan = plan_for_engine(source, Engine::kVllm, std::nullopt);
  EXPECT_EQ(plan.target.dialect->name, "deepseek");
  EXPECT_EQ(plan.counts.copied, plan.tensors.size());
}

/// The remarks on a tiny model that becomes `recipe`.
Loadable loadable_of(const TinyCheckpoint& tiny, Recipe recipe) {
  const TempDir dir;
  tiny.write(dir.path());
  write_tokenizer(dir.path());
  const Checkpoint source =
      Checkpoint::open(dir.path(), {.allow_unknown = &recipe.allow.unknown_tensor});
  if (!recipe.to)
    recipe.choices.repair = std::make_shared<const RepairFacts>(read_repair_facts(source));
  return require_loadable(plan_conversion(source, std::move(recipe), {}), 1);
}

std::size_t n_loading(const Loadable& loadable) {
  return static_cast<std::size_t>(
      std::ranges::count(loadable.engines, true, &engines::EngineVerdict::loads));
}

TEST(LoadedBy, NobodyWhereARuleFindsAnError) {
  const Recipe plain{.to = SchemeId::kBf16};
  EXPECT_GT(n_loading(loadable_of(tiny_deepseek_v3(), plain)), 0U);

  TinyCheckpoint lacking = tiny_deepseek_v3();
  std::erase_if(lacking.files.begin()->second,
                [](const TinyTensor& tensor) { return tensor.name == "model.norm.weight"; });
  const Loadable without = loadable_of(lacking, plain);
  EXPECT_EQ(n_loading(without), 0U);
  EXPECT_THAT(verdict_of(without, Engine::kVllm).reason,
              ::testing::HasSubstr("promised by config.json missing"));

  TinyCheckpoint renamed = tiny_deepseek_v3();
  tensor_of(renamed, "model.norm.weight").name = "norm.weight";
  Recipe allowing = plain;
  allowing.allow.add("unknown-tensor=norm.weight");
  EXPECT_EQ(n_loading(loadable_of(renamed, allowing)), 0U);

  TinyCheckpoint unroutable = tiny_deepseek_v3();
  const std::string_view group = R"("n_group": 1)";
  unroutable.config.replace(unroutable.config.find(group), group.size(), R"("n_group": 3)");
  const Loadable nowhere = loadable_of(unroutable, plain);
  EXPECT_EQ(n_loading(nowhere), 0U);
  EXPECT_THAT(nowhere.warnings,
              ::testing::Contains(::testing::Field(&check::Finding::rule, "moe.routing")));
}

TEST(Repair, RefusesAHeadThatLoadersBuildPlain) {
  TinyCheckpoint tiny = tiny_deepseek_v3();
  make_fp8(tiny, "lm_head.weight", "lm_head.weight_scale_inv");
  expect_error(ErrorCode::kDtypeMismatch,
               {"lm_head.weight", "fp8.plain-module", "--rule 'lm_head.weight=bf16'"},
               [&] { loadable_of(tiny, {}); });
}

/// A fixture with a tokenizer, without which no server is said to load it.
const std::filesystem::path& with_tokenizer(const std::string& name,
                                            const std::filesystem::path& directory) {
  std::filesystem::copy(std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden/families" / name,
                        directory);
  write_tokenizer(directory);
  return directory;
}

/// The plan of a fixture with its experts in the form in which they are written.
struct PlannedFixture {
  explicit PlannedFixture(const std::string& name, SchemeId to,
                          std::optional<Engine> engine = std::nullopt)
      : PlannedFixture(name, recipe_to(to, engine)) {}
  PlannedFixture(const std::string& name, const Recipe& recipe)
      : source(as_written(std::make_shared<const Checkpoint>(Checkpoint::open(
                                           with_tokenizer(name, directory.path()))),
                                       recipe, {})),
        plan(plan_conversion(*source, recipe, {})) {}

  static Recipe recipe_to(SchemeId to, std::optional<Engine> engine) {
    Recipe recipe;
    recipe.to = to;
    if (engine) recipe.choices.engine = &engines::newest(*engine);
    return recipe;
  }
  [[nodiscard]] engines::EngineVerdict vllm() const {
    return verdict_of(require_loadable(plan, 1), Engine::kVllm);
  }
  [[nodiscard]] std::string_view dialect() const { return plan.target.dialect->name; }

  TempDir directory;
  std::shared_ptr<const Checkpoint> source;
  Plan plan;
};

TEST(EngineFamilies, RefuseFormsThatTheirLoaderLacks) {
  const PlannedFixture int8("gpt_oss_bf16", SchemeId::kInt8Channel);
  EXPECT_FALSE(int8.vllm().loads);
  EXPECT_THAT(int8.vllm().reason, ::testing::HasSubstr("gpt-oss"));
  const PlannedFixture plain("gpt_oss_bf16", SchemeId::kBf16);
  EXPECT_TRUE(plain.vllm().loads);
  EXPECT_EQ(plain.vllm().evidence, engines::Evidence::kRead) << "its loader is not that of 0.32";
  expect_error(ErrorCode::kUnsupported, {"vLLM 0.33", "gpt-oss", "mxfp4"}, [&] {
    static_cast<void>(PlannedFixture("gpt_oss_bf16", SchemeId::kInt8Channel, Engine::kVllm).vllm());
  });
}

TEST(EngineFamilies, TellSilentGarbage) {
  Recipe separate = PlannedFixture::recipe_to(SchemeId::kBf16, std::nullopt);
  separate.choices.experts = ExpertChoice::kSeparate;
  const PlannedFixture plain("gpt_oss_bf16", separate);
  const Loadable loadable = require_loadable(plain.plan, 1);
  EXPECT_FALSE(plain.vllm().loads);
  EXPECT_TRUE(plain.vllm().is_silent);
  EXPECT_THAT(loadable.warnings,
              ::testing::Contains(
                  ::testing::Field(&check::Finding::message,
                                   ::testing::HasSubstr("without an error and computes garbage"))));
  separate.choices.engine = &engines::kVllmRow;
  expect_error(ErrorCode::kUnsupported, {"without an error and computes garbage"},
               [&] { static_cast<void>(PlannedFixture("gpt_oss_bf16", separate).vllm()); });
  const PlannedFixture int8("gpt_oss_bf16", SchemeId::kInt8Channel);
  EXPECT_FALSE(int8.vllm().is_silent) << "nobody saw what becomes of it";
}

TEST(EngineFamilies, SayWhereNobodyTriedOne) {
  const engines::EngineVerdict vllm = PlannedFixture("mistral4_fp8", SchemeId::kBf16).vllm();
  EXPECT_TRUE(vllm.loads);
  EXPECT_EQ(vllm.evidence, engines::Evidence::kNotOfFamily);
}

TEST(EngineFamilies, HaveADialectOfTheirOwn) {
  const PlannedFixture usual("gpt_oss_bf16", SchemeId::kMxfp4);
  EXPECT_EQ(usual.dialect(), "mxfp4");
  EXPECT_TRUE(usual.vllm().loads);
  EXPECT_EQ(PlannedFixture("gpt_oss_bf16", SchemeId::kMxfp4, Engine::kVllm).dialect(), "mxfp4");
  Recipe separate = PlannedFixture::recipe_to(SchemeId::kMxfp4, std::nullopt);
  separate.choices.experts = ExpertChoice::kSeparate;
  EXPECT_EQ(target_dialect(separate, *usual.source).name, "compressed-tensors");
}

TEST(EngineFamilies, TakeTheDialectThatTheirLoaderReads) {
  EXPECT_EQ(PlannedFixture("ministral3_fp8", SchemeId::kFp8Block, Engine::kVllm).dialect(),
            "compressed-tensors");
}

TEST(EngineFamilies, AWidthInsideABlockIsRefused) {
  const PlannedFixture narrow("glm4_moe_fp8_block", SchemeId::kFp8Block);
  EXPECT_FALSE(narrow.vllm().loads);
  EXPECT_THAT(narrow.vllm().reason, ::testing::HasSubstr("multiple of the block's"));
}

// Its release has eh_proj and the head of the MTP layer in FP8, as compressed-tensors may.
TEST(DefaultRecipes, DecodeWhatTheDialectsLoadersBuildPlain) {
  const PlannedFixture fixture("glm4_moe_fp8_block", SchemeId::kFp8Block);
  const Plan& plan = fixture.plan;
  EXPECT_EQ(plan.counts.demoted, 2U);
  for (const PlannedTensor& planned : plan.tensors) {
    if (!planned.is_demoted) continue;
    EXPECT_FALSE(formats::can_be_quantized(*plan.target.dialect, *plan.tensor_of(planned).rule));
    EXPECT_EQ(planned.to, SchemeId::kBf16);
  }
}

TEST(DefaultRecipes, ListWhatEnginesWouldMakeFp8) {
  const PlannedFixture fixture("qwen3_5_moe", SchemeId::kFp8Block);
  EXPECT_THAT(fixture.plan.json.config, ::testing::HasSubstr("layers.0.linear_attn.in_proj_a"));
  EXPECT_THAT(fixture.plan.json.config, ::testing::HasSubstr("layers.0.linear_attn.in_proj_b"));
}

}  // namespace
}  // namespace ingot::convert
