#include "convert/convert.h"
#include "convert/output/planned_checkpoint.h"
#include "engines/versions/versions.h"
#include "formats/family/families.h"
#include "formats/json/json.h"
#include "synth/synth.h"
#include "tests/convert/conversion.h"
#include "tests/support/test.h"
#include "tests/support/tiny_tokenizer.h"

// SGLang loads shared experts as further routed ones in some classes: what plans say of it.

namespace ingot::convert {
namespace {

using namespace ingot::testing;
using engines::Engine;
using formats::Checkpoint;
using formats::Json;
using formats::SchemeId;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr const char* kOption = "--disable-shared-experts-fusion";

constexpr const char* kGlm =
    R"({"architectures":["Glm4MoeForCausalLM"],"model_type":"glm4_moe","vocab_size":512,"hidden_size":256,"intermediate_size":512,"moe_intermediate_size":256,"num_hidden_layers":2,"num_attention_heads":8,"num_key_value_heads":4,"head_dim":64,"n_routed_experts":4,"n_shared_experts":1,"num_experts_per_tok":2,"n_group":1,"topk_group":1,"first_k_dense_replace":1,"norm_topk_prob":true,"routed_scaling_factor":1.0,"hidden_act":"silu","rms_norm_eps":1e-5,"rope_theta":10000.0,"partial_rotary_factor":0.5,"max_position_embeddings":4096,"attention_bias":true,"use_qk_norm":false,"tie_word_embeddings":false,"torch_dtype":"bfloat16","num_nextn_predict_layers":0})";
constexpr const char* kDeepseek =
    R"({"architectures":["DeepseekV3ForCausalLM"],"model_type":"deepseek_v3","vocab_size":512,"hidden_size":256,"intermediate_size":512,"moe_intermediate_size":256,"num_hidden_layers":2,"num_attention_heads":2,"num_key_value_heads":2,"q_lora_rank":128,"kv_lora_rank":128,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,"n_routed_experts":256,"n_shared_experts":1,"num_experts_per_tok":4,"n_group":4,"topk_group":2,"first_k_dense_replace":1,"moe_layer_freq":1,"norm_topk_prob":true,"routed_scaling_factor":2.5,"scoring_func":"sigmoid","topk_method":"noaux_tc","hidden_act":"silu","rms_norm_eps":1e-6,"rope_theta":10000.0,"max_position_embeddings":4096,"attention_bias":false,"tie_word_embeddings":false,"torch_dtype":"bfloat16","num_nextn_predict_layers":0})";

/// The facts that tests ask about a plan.
struct FusedOutput {
  engines::EngineVerdict verdict;
  std::map<std::uint64_t, SchemeId> shared;  ///< by layer
  std::vector<std::string> warnings;
};

/// A plan of a model of this config, without its weights.
FusedOutput output_of(const std::string& config, const Recipe& recipe,
                      Engine engine = Engine::kSglang) {
  TempDir directory;
  formats::SynthOptions options;
  options.config = config;
  options.family = formats::family_of(formats::parse_model_config(config, "config.json"));
  options.size = formats::SynthSize::kHeaders;
  const std::filesystem::path path = directory.path() / "source";
  write_synthetic_checkpoint(path, options);
  write_tokenizer(path);
  const Checkpoint source = Checkpoint::open(path);
  const Plan plan = plan_conversion(source, recipe, {});
  FusedOutput planned;
  planned.verdict = require_loadable(plan, 1).engines.at(static_cast<std::size_t>(engine));
  planned.warnings = plan.warnings;
  for (const PlannedTensor& tensor : plan.tensors) {
    const formats::LogicalTensor& of_source = plan.tensor_of(tensor);
    if (of_source.rule != nullptr && formats::kSharedExpertRoles.has(of_source.rule->role))
      planned.shared[*of_source.layer] = tensor.to;
  }
  return planned;
}

Recipe fused_recipe(SchemeId to, const std::vector<std::string>& rules,
                    const std::string& dialect = "") {
  Recipe recipe;
  recipe.to = to;
  recipe.choices.dialect = dialect;
  if (dialect == "modelopt") recipe.choices.activations = formats::Activations::kWeightOnly;
  for (const std::string& rule : rules) recipe.rules.push_back(parse_rule(rule));
  return recipe;
}

engines::EngineVerdict planned(const std::string& config, SchemeId to,
                               const std::vector<std::string>& rules,
                               const std::string& dialect = "", Engine engine = Engine::kSglang) {
  return output_of(config, fused_recipe(to, rules, dialect), engine).verdict;
}

/// The same with `--for sglang`.
FusedOutput planned_for_sglang(const std::string& config, SchemeId to,
                               const std::vector<std::string>& rules,
                               std::optional<MtpPolicy> mtp = std::nullopt) {
  Recipe recipe = fused_recipe(to, rules);
  recipe.choices.engine = &engines::newest(Engine::kSglang);
  recipe.mtp = mtp;
  return output_of(config, recipe);
}

std::string with_experts(std::string config, int n) {
  Json edited = Json::parse(config);
  edited["n_routed_experts"] = n;
  return edited.dump();
}

std::string with_mtp_layer(std::string config) {
  Json edited = Json::parse(config);
  edited["num_nextn_predict_layers"] = 1;
  return edited.dump();
}

/// DeepSeek V3.2, of which only the draft fuses.
std::string sparse_deepseek() {
  Json edited = Json::parse(with_mtp_layer(kDeepseek));
  edited["architectures"] = {"DeepseekV32ForCausalLM"};
  edited["model_type"] = "deepseek_v32";
  edited["index_n_heads"] = 2;
  edited["index_head_dim"] = 128;
  edited["index_topk"] = 64;
  return edited.dump();
}

TEST(FusedSharedExperts, OfAnotherSchemeNeedAnOption) {
  EXPECT_THAT(planned(kGlm, SchemeId::kInt4Group, {}).options, ElementsAre(kOption));
  EXPECT_THAT(planned(kGlm, SchemeId::kInt4Group, {}, "", Engine::kVllm).options, IsEmpty());
  const std::vector<std::string> plain = {"role:shared-experts=bf16"};
  EXPECT_THAT(planned(kGlm, SchemeId::kFp8Block, plain).options, ElementsAre(kOption));
  EXPECT_THAT(planned(kGlm, SchemeId::kFp8Block, {"role:experts=bf16"}).options,
              ElementsAre(kOption));
  EXPECT_THAT(planned(kGlm, SchemeId::kFp8Block, {}).options, IsEmpty());
  EXPECT_THAT(planned(kDeepseek, SchemeId::kFp8Channel, {"role:experts=nvfp4"}).options,
              ElementsAre(kOption));
  const engines::EngineVerdict int8 = planned(kDeepseek, SchemeId::kInt8Channel, plain);
  EXPECT_TRUE(int8.loads) << int8.reason;
  EXPECT_THAT(int8.options, UnorderedElementsAre("--quantization w8a8_int8", kOption));
}

TEST(FusedSharedExperts, AreThoseOfSomeClasses) {
  const std::vector<std::string> plain = {"role:shared-experts=bf16"};
  EXPECT_THAT(planned(kDeepseek, SchemeId::kFp8Block, plain).options, ElementsAre(kOption));
  EXPECT_THAT(planned(with_experts(kDeepseek, 64), SchemeId::kFp8Block, plain).options, IsEmpty());
}

// models/deepseek_common/utils.py:146: INT4 as the target `Linear`.
TEST(FusedSharedExperts, DeepseekSparesInt4OfOneGroup) {
  EXPECT_THAT(planned(kDeepseek, SchemeId::kInt4Group, {}).options, IsEmpty());
  EXPECT_THAT(planned(kDeepseek, SchemeId::kInt4Group, {"role:attention=fp8-block"}).options,
              ElementsAre(kOption));
}

// modelopt_quant.py:1552: a list that names shared experts; GLM's class does not ask.
TEST(FusedSharedExperts, DeepseekSparesPlainOnesOfModelopt) {
  const std::vector<std::string> plain = {"role:shared-experts=bf16"};
  const engines::EngineVerdict modelopt = planned(kDeepseek, SchemeId::kNvfp4, plain, "modelopt");
  EXPECT_TRUE(modelopt.loads) << modelopt.reason;
  EXPECT_THAT(modelopt.options, IsEmpty());
  EXPECT_THAT(planned(kDeepseek, SchemeId::kNvfp4, plain).options, ElementsAre(kOption));
  EXPECT_THAT(planned(kGlm, SchemeId::kNvfp4, plain, "modelopt").options, ElementsAre(kOption));
}

TEST(FusedSharedExperts, GlmHasNvfp4OnlyWithoutTheOption) {
  const engines::EngineVerdict alike = planned(kGlm, SchemeId::kNvfp4, {}, "compressed-tensors");
  EXPECT_TRUE(alike.loads) << alike.reason;
  EXPECT_THAT(alike.options, IsEmpty());
  const engines::EngineVerdict mixed =
      planned(kGlm, SchemeId::kNvfp4, {"role:experts=int4"}, "compressed-tensors");
  EXPECT_FALSE(mixed.loads);
  EXPECT_FALSE(mixed.is_silent);
  EXPECT_THAT(mixed.reason, HasSubstr(kOption));
}

// configs/model_config.py:1032 and deepseek_nextn.py:250: V3.2's draft is one of V3's class.
TEST(FusedSharedExperts, OfDraftsNeedTheOptionToo) {
  const std::vector<std::string> draft = {"role:shared-experts&layers:mtp=bf16"};
  const std::vector<std::string> model = {"role:shared-experts&layers:0-1=bf16"};
  for (const std::string& config :
       {with_mtp_layer(kGlm), with_mtp_layer(kDeepseek), sparse_deepseek()}) {
    EXPECT_THAT(planned(config, SchemeId::kFp8Block, draft).options, ElementsAre(kOption))
        << config;
    EXPECT_THAT(planned(config, SchemeId::kFp8Block, {}).options, IsEmpty()) << config;
  }
  EXPECT_THAT(planned(sparse_deepseek(), SchemeId::kFp8Block, model).options, IsEmpty());
}

TEST(FusedSharedExperts, FollowTheRoutedOnesForSglang) {
  const FusedOutput int4 = planned_for_sglang(kGlm, SchemeId::kInt4Group, {});
  EXPECT_TRUE(int4.verdict.loads) << int4.verdict.reason;
  EXPECT_THAT(int4.verdict.options, IsEmpty());
  EXPECT_THAT(int4.shared, ElementsAre(Pair(1, SchemeId::kInt4Group)));
  EXPECT_THAT(int4.warnings,
              Contains(AllOf(HasSubstr("shared experts are int4-group"), HasSubstr(kOption))));
  const FusedOutput plain = planned_for_sglang(kGlm, SchemeId::kFp8Block, {"role:experts=bf16"});
  EXPECT_THAT(plain.verdict.options, IsEmpty());
  EXPECT_THAT(plain.shared, ElementsAre(Pair(1, SchemeId::kBf16)));
  const FusedOutput mixed =
      planned_for_sglang(kDeepseek, SchemeId::kFp8Channel, {"role:experts=nvfp4"});
  EXPECT_THAT(mixed.verdict.options, IsEmpty());
  EXPECT_THAT(mixed.shared, ElementsAre(Pair(1, SchemeId::kNvfp4)));
  // NVFP4 of GLM refuses the option.
  const FusedOutput refused = planned_for_sglang(kGlm, SchemeId::kNvfp4, {"role:experts=int4"});
  EXPECT_TRUE(refused.verdict.loads) << refused.verdict.reason;
  EXPECT_THAT(refused.shared, ElementsAre(Pair(1, SchemeId::kInt4Group)));
}

TEST(FusedSharedExperts, OfDraftsFollowWhereTheyAreConverted) {
  const FusedOutput converted =
      planned_for_sglang(with_mtp_layer(kGlm), SchemeId::kInt4Group, {}, MtpPolicy::kConvert);
  EXPECT_THAT(converted.verdict.options, IsEmpty());
  EXPECT_THAT(converted.shared,
              ElementsAre(Pair(1, SchemeId::kInt4Group), Pair(2, SchemeId::kInt4Group)));
  const FusedOutput usual = planned_for_sglang(with_mtp_layer(kGlm), SchemeId::kInt4Group, {});
  EXPECT_THAT(usual.verdict.options, IsEmpty());
  EXPECT_THAT(usual.shared, ElementsAre(Pair(1, SchemeId::kInt4Group), Pair(2, SchemeId::kBf16)));
}

TEST(FusedSharedExperts, AreLeftWhereNothingIsGained) {
  EXPECT_THAT(planned_for_sglang(kDeepseek, SchemeId::kInt4Group, {}).shared,
              ElementsAre(Pair(1, SchemeId::kBf16)));
  EXPECT_THAT(
      planned_for_sglang(with_experts(kDeepseek, 64), SchemeId::kFp8Channel, {"role:experts=nvfp4"})
          .shared,
      ElementsAre(Pair(1, SchemeId::kFp8Channel)));
  EXPECT_THAT(output_of(kGlm, fused_recipe(SchemeId::kInt4Group, {})).shared,
              ElementsAre(Pair(1, SchemeId::kBf16)));
}

TEST(FusedSharedExperts, StayAsTheUserSays) {
  const FusedOutput said =
      planned_for_sglang(kGlm, SchemeId::kInt4Group, {"role:shared-experts=bf16"});
  EXPECT_THAT(said.verdict.options, ElementsAre(kOption));
  EXPECT_THAT(said.shared, ElementsAre(Pair(1, SchemeId::kBf16)));
  expect_error(ErrorCode::kUnsupported, {kOption}, [] {
    return planned_for_sglang(kGlm, SchemeId::kNvfp4,
                              {"role:shared-experts=nvfp4", "role:experts=int4"});
  });
}

}  // namespace
}  // namespace ingot::convert
