#include "formats/family/families.h"
#include "formats/json/json.h"
#include "inference/family/model_family.h"
#include "inference/model/recurrent/state_space.h"
#include "tests/support/json_edit.h"
#include "tests/support/test.h"

// Specs of configs in the tree, edited, and the parts that tests look at.

namespace ingot::testing {

using formats::Json;
using formats::ModelConfig;
using namespace inference;

using Edits = std::vector<JsonEdit>;

/// The first block of a kind in a layer.
template <typename Kind>
const Kind& body(const ModelSpec& spec, std::size_t layer = 0) {
  const Kind* found = spec.layers.at(layer).find<Kind>();
  if (found == nullptr) throw std::runtime_error("no such block");
  return *found;
}

/// Tells for each layer if it has its own indexer; the others use the choice of an earlier layer.
inline std::vector<bool> indexers(const ModelSpec& spec) {
  std::vector<bool> own;
  for (std::size_t l = 0; l < spec.layers.size(); ++l) {
    own.push_back(body<LatentSpec>(spec, l).indexer.has_value());
    EXPECT_EQ(body<LatentSpec>(spec, l).takes_earlier_choice, !own.back());
  }
  return own;
}

/// A config of the tree, edited.
inline ModelConfig config_of(const std::string& path, const Edits& edits = {}) {
  const std::filesystem::path directory = std::filesystem::path(INGOT_SOURCE_DIR) / path;
  const Json json = formats::read_json_file(directory / "config.json", 1 << 20);
  return formats::parse_model_config(edited(json, edits).dump(), "config.json");
}

inline ModelSpec spec_of(const std::string& path, const Edits& edits = {}) {
  const ModelConfig config = config_of(path, edits);
  return model_spec(*formats::family_of(config), config);
}

/// A model of tests/golden/forward.
inline ModelSpec forward_spec(const std::string& name, const Edits& edits = {}) {
  return spec_of("tests/golden/forward/" + name + "/checkpoint", edits);
}

inline void expect_forward_refused(const std::string& name, ErrorCode code,
                                   std::initializer_list<std::string> fragments,
                                   const Edits& edits) {
  expect_error(code, fragments, [&] { forward_spec(name, edits); });
}

}  // namespace ingot::testing

// config.json to the numbers of a forward pass, family by family.

namespace ingot::inference {
namespace {

using formats::Json;
using formats::ModelConfig;
using namespace ingot::testing;
using ::testing::ElementsAre;

std::vector<bool> mixtures(const ModelSpec& spec) {
  std::vector<bool> is_moe;
  for (std::size_t l = 0; l < spec.layers.size(); ++l) is_moe.push_back(spec.is_moe(l));
  return is_moe;
}

ModelSpec tiny(const Edits& edits = {}) {
  return spec_of("examples/tiny-v32", edits);
}
ModelSpec arch(const std::string& family, const Edits& edits = {}) {
  return spec_of("tests/golden/arch/" + family, edits);
}

void expect_tiny_refused(ErrorCode code, std::initializer_list<std::string> fragments,
                         const Edits& edits) {
  expect_error(code, fragments, [&] { tiny(edits); });
}

TEST(ModelSpec, ReadsTheNumbersOfTheExample) {
  const ModelSpec spec = tiny();
  EXPECT_EQ(spec.family, "deepseek_v32");
  EXPECT_EQ(spec.n_main, 5U);
  EXPECT_THAT(mixtures(spec), ElementsAre(false, true, true, true, true, true));
  const LatentSpec& latent = body<LatentSpec>(spec);
  EXPECT_EQ(latent.heads, 8U);
  EXPECT_EQ(latent.latent_norm.eps, 1e-6F);
  EXPECT_TRUE(latent.rope.interleaved);
  EXPECT_FALSE(spec.indexer()->rope.interleaved);
  EXPECT_TRUE(spec.indexer()->hadamard_fp8);
  EXPECT_TRUE(spec.indexer()->power_of_two_keys);
  EXPECT_EQ(spec.router()->groups, 4U);
  EXPECT_EQ(spec.router()->topk_groups, 2U);
  EXPECT_EQ(spec.router()->scale, 2.5F);
  EXPECT_TRUE(spec.router()->normalize);
  const double g = 0.1 * std::log(4.0) + 1;
  EXPECT_NEAR(latent.softmax_scale, g * g / std::sqrt(48.0), 1e-8);
}

// The table of the model reference, 4.5.
TEST(ModelSpec, HasTheSoftmaxScaleOfThePublishedModels) {
  const auto scale = [](double factor, double mscale) {
    return body<LatentSpec>(tiny({{"/qk_nope_head_dim", 128},
                                  {"/qk_rope_head_dim", 64},
                                  {"/index_head_dim", 128},
                                  {"/rope_scaling/factor", factor},
                                  {"/rope_scaling/mscale", mscale},
                                  {"/rope_scaling/mscale_all_dim", mscale}}))
        .softmax_scale;
  };
  EXPECT_NEAR(scale(40, 1.0), 0.1352337789, 1e-8);
  EXPECT_NEAR(scale(40, 0.707), 0.1147213868, 1e-8);
  EXPECT_NEAR(scale(32, 1.0), 0.1308607999, 1e-8);
  EXPECT_NEAR(scale(64, 1.0), 0.1446796256, 1e-8);
  const ModelSpec plain =
      tiny({{"/qk_nope_head_dim", 128}, {"/qk_rope_head_dim", 64}, {"/rope_scaling"}});
  EXPECT_NEAR(body<LatentSpec>(plain).softmax_scale, 0.0721687836, 1e-8);
}

TEST(ModelSpec, GlmInterleavesRopeAndKeepsLatentEps) {
  const ModelSpec spec = arch("glm_moe_dsa");
  EXPECT_TRUE(body<LatentSpec>(spec).rope.interleaved);
  EXPECT_TRUE(spec.indexer()->rope.interleaved);
  EXPECT_FALSE(spec.indexer()->hadamard_fp8);
  EXPECT_EQ(spec.norm.eps, 1e-5F);
  EXPECT_EQ(body<LatentSpec>(spec).latent_norm.eps, 1e-6F);
  const ModelSpec flagged =
      arch("glm_moe_dsa", {{"/rope_interleave", false}, {"/indexer_rope_interleave", false}});
  EXPECT_FALSE(body<LatentSpec>(flagged).rope.interleaved);
  EXPECT_FALSE(flagged.indexer()->rope.interleaved);
  EXPECT_TRUE(tiny({{"/indexer_rope_interleave", true}}).indexer()->rope.interleaved);
}

TEST(ModelSpec, SecondGenerationNormalizesOrScales) {
  const auto router = [](bool normalize, std::uint64_t topk) {
    return *arch("deepseek_v2", {{"/routed_scaling_factor", 16.0},
                                 {"/norm_topk_prob", normalize},
                                 {"/num_experts_per_tok", topk}})
                .router();
  };
  EXPECT_FALSE(router(false, 3).normalize);
  EXPECT_EQ(router(false, 3).scale, 16.0F);
  EXPECT_TRUE(router(true, 3).normalize);
  EXPECT_EQ(router(true, 3).scale, 1.0F);
  EXPECT_FALSE(router(true, 1).normalize);
  EXPECT_EQ(router(true, 1).scale, 16.0F);
  EXPECT_EQ(router(false, 3).score, GateScore::kSoftmax);
  EXPECT_FALSE(router(false, 3).correction_bias);
}

TEST(ModelSpec, SecondGenerationLimitsGroupsByMethod) {
  const auto groups = [](const char* method) {
    return arch("deepseek_v2", {{"/topk_method", method}, {"/n_group", 4}, {"/topk_group", 2}})
        .router()
        ->groups;
  };
  EXPECT_EQ(groups("greedy"), 1U);
  EXPECT_EQ(groups("group_limited_greedy"), 4U);
  expect_error(ErrorCode::kUnsupported, {"topk_method", "noaux_tc", "greedy"},
               [&] { groups("noaux_tc"); });
}

TEST(ModelSpec, QwenHasNoGroupsOrSharedExperts) {
  const ModelSpec spec = arch("qwen3_moe");
  EXPECT_EQ(spec.find<LatentSpec>(), nullptr);
  const GroupedSpec& grouped = body<GroupedSpec>(spec);
  EXPECT_EQ(grouped.heads, 8U);
  EXPECT_EQ(grouped.kv_heads, 2U);
  EXPECT_FALSE(grouped.rope.interleaved);
  EXPECT_EQ(grouped.rope.dim, 32U);
  EXPECT_FALSE(spec.find<MixtureSpec>()->shared);
  EXPECT_EQ(spec.router()->groups, 1U);
  EXPECT_TRUE(spec.router()->normalize);
  EXPECT_EQ(spec.router()->scale, 1.0F);
  EXPECT_NEAR(grouped.softmax_scale, 1 / std::sqrt(32.0), 1e-8);
  expect_error(ErrorCode::kCorrupt, {"config.json", "8 heads", "3 key heads"}, [] {
    arch("qwen3_moe", {{"/num_key_value_heads", 3}});
  });
  const Edits window = {{"/use_sliding_window", true}, {"/sliding_window", 7}};
  EXPECT_EQ(body<GroupedSpec>(arch("qwen3_moe", window)).window, 7U);
}

std::vector<bool> own_indexers(std::size_t layers, std::optional<std::uint64_t> freq,
                               std::optional<std::uint64_t> offset) {
  Edits edits = {{"/num_hidden_layers", layers}};
  if (freq) edits.push_back({"/index_topk_freq", *freq});
  if (offset) edits.push_back({"/index_skip_topk_offset", *offset});
  std::vector<bool> own = indexers(tiny(edits));
  EXPECT_EQ(own.size(), layers + 1);
  EXPECT_TRUE(own.back()) << "the MTP layer has its own";
  own.pop_back();
  return own;
}

// Layer i has its own when max(i - offset + 1, 0) is a multiple of freq.
TEST(OwnIndexers, FollowTheRuleOfTwoNumbers) {
  EXPECT_THAT(own_indexers(3, std::nullopt, std::nullopt), ElementsAre(true, true, true));
  EXPECT_THAT(own_indexers(3, 1, 0), ElementsAre(true, true, true));
  EXPECT_THAT(own_indexers(7, 2, std::nullopt),
              ElementsAre(true, true, false, true, false, true, false));
  EXPECT_THAT(own_indexers(12, 4, 3), ElementsAre(true, true, true, false, false, false, true,
                                                  false, false, false, true, false));
  EXPECT_THAT(own_indexers(5, 2, 1), ElementsAre(true, false, true, false, true));
}

TEST(OwnIndexers, FollowTheListWhereThereIsOne) {
  const auto own =
      indexers(tiny({{"/indexer_types", {"full", "shared", "shared", "full", "shared"}},
                     {"/index_topk_freq", 3}}));
  EXPECT_THAT(own, ElementsAre(true, false, false, true, false, true));
}

TEST(OwnIndexers, ThatMakeNoSenseAreRefused) {
  expect_tiny_refused(ErrorCode::kCorrupt, {"first layer shares"},
                      {{"/indexer_types", {"shared", "full", "full", "full", "full"}}});
  expect_tiny_refused(ErrorCode::kCorrupt, {"first layer shares"},
                      {{"/index_topk_freq", 4}, {"/index_skip_topk_offset", 0}});
  expect_tiny_refused(ErrorCode::kCorrupt, {"indexer_types", "layer 1"},
                      {{"/indexer_types", {"full", "half", "full", "full", "full"}}});
  expect_tiny_refused(ErrorCode::kCorrupt, {"indexer_types", "5 layers"},
                      {{"/indexer_types", {"full", "shared"}}});
  expect_tiny_refused(ErrorCode::kCorrupt, {"indexer_types"}, {{"/indexer_types", "shared"}});
  expect_tiny_refused(ErrorCode::kCorrupt, {"'index_topk_freq'"}, {{"/index_topk_freq", -1}});
}

TEST(ModelSpec, LackingANumberIsRefusedByItsKey) {
  for (const char* key : {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                          "kv_lora_rank", "v_head_dim", "index_n_heads", "index_head_dim",
                          "index_topk", "moe_intermediate_size", "rms_norm_eps"}) {
    expect_tiny_refused(ErrorCode::kCorrupt, {"config.json", fmt::format("'{}'", key)},
                        {{std::string("/") + key}});
  }
  expect_tiny_refused(ErrorCode::kCorrupt, {"q_lora_rank"}, {{"/q_lora_rank", nullptr}});
}

// Tables of this width would be made before any tensor could say that it is wrong.
TEST(ModelSpec, RefusesAbsurdWidths) {
  for (const char* key : {"num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim",
                          "v_head_dim", "index_n_heads", "index_head_dim"}) {
    expect_tiny_refused(ErrorCode::kCorrupt, {fmt::format("'{}'", key), "4294967294"},
                        {{std::string("/") + key, 4294967294U}});
  }
  expect_error(ErrorCode::kCorrupt, {"4294967294"}, [] {
    arch("qwen3_moe", {{"/head_dim", 4294967294U}});
  });
}

TEST(ModelSpec, RefusesARouterWithoutAChoice) {
  expect_tiny_refused(ErrorCode::kCorrupt, {"'num_experts_per_tok' is 17", "16 experts"},
                      {{"/num_experts_per_tok", 17}});
  expect_tiny_refused(ErrorCode::kCorrupt, {"16 experts in 3 groups"}, {{"/n_group", 3}});
  expect_tiny_refused(ErrorCode::kCorrupt, {"16 experts in 4 groups, of which 5"},
                      {{"/topk_group", 5}});
  expect_tiny_refused(ErrorCode::kCorrupt, {"of which 1 are kept, cannot give 5"},
                      {{"/topk_group", 1}, {"/num_experts_per_tok", 5}});
  expect_tiny_refused(ErrorCode::kCorrupt, {"16 groups have one expert each"},
                      {{"/n_group", 16}, {"/topk_group", 8}});
  expect_tiny_refused(ErrorCode::kUnsupported, {"'scoring_func' is 'softmax'", "'sigmoid'"},
                      {{"/scoring_func", "softmax"}});
  expect_tiny_refused(ErrorCode::kUnsupported, {"'topk_method' is 'greedy'"},
                      {{"/topk_method", "greedy"}});
}

TEST(ModelSpec, RefusesUnknownFeatures) {
  expect_tiny_refused(ErrorCode::kUnsupported, {"'hidden_act' is 'gelu'", "'silu'"},
                      {{"/hidden_act", "gelu"}});
  expect_tiny_refused(ErrorCode::kUnsupported, {"'rope_type' is 'yarm'"},
                      {{"/rope_scaling", {{"rope_type", "yarm"}, {"factor", 4}}}});
  expect_tiny_refused(ErrorCode::kUnsupported, {"attention_bias"}, {{"/attention_bias", true}});
  expect_tiny_refused(ErrorCode::kUnsupported, {"'num_attention_heads' is not the same"},
                      {{"/num_attention_heads", {2, 4, 4, 4, 4}}});
  expect_tiny_refused(ErrorCode::kUnsupported, {"'index_head_dim' is no power of two"},
                      {{"/index_head_dim", 96}});
  expect_tiny_refused(ErrorCode::kCorrupt, {"'index_head_dim' is 8", "16 values"},
                      {{"/index_head_dim", 8}});
}

ModelSpec v4(const Edits& edits = {}) {
  return spec_of("tests/golden/families/deepseek_v4", edits);
}

TEST(DeepseekV4Spec, RefusesWhatMakesNoAttention) {
  const auto refused = [](ErrorCode code, std::initializer_list<std::string> fragments,
                          const Edits& edits) {
    expect_error(code, fragments, [&] { v4(edits); });
  };
  refused(ErrorCode::kCorrupt, {"'compress_ratios' has no whole number for layer 2"},
          {{"/compress_ratios", {0, 4}}});
  refused(ErrorCode::kUnsupported, {"'compress_ratios' has 64 for layer 1"},
          {{"/compress_ratios", {0, 64, 128, 4}}});
  refused(ErrorCode::kCorrupt, {"4 heads of 48 values, of which 16 are rotated, in 3 groups"},
          {{"/o_groups", 3}});
  refused(ErrorCode::kCorrupt, {"48 are rotated"}, {{"/qk_rope_head_dim", 48}});
  refused(ErrorCode::kCorrupt, {"'index_head_dim' is 8"}, {{"/index_head_dim", 8}});
  refused(ErrorCode::kCorrupt, {"'hc_mult'"}, {{"/hc_mult", 0}});
  refused(ErrorCode::kUnsupported, {"'scoring_func' is 'tanh'"}, {{"/scoring_func", "tanh"}});
  refused(ErrorCode::kUnsupported, {"'norm_topk_prob' is false"}, {{"/norm_topk_prob", false}});
  for (const char* key : {"sliding_window", "o_lora_rank", "q_lora_rank", "index_topk",
                          "index_n_heads", "n_routed_experts"}) {
    refused(ErrorCode::kCorrupt, {fmt::format("'{}'", key)}, {{std::string("/") + key}});
  }
}

TEST(RecurrentSpecs, RefuseWhatMakesNoMixer) {
  using enum ErrorCode;
  expect_forward_refused("qwen3_next", kCorrupt, {"3 value heads over 2 key heads"},
                         {{"/linear_num_value_heads", 3}});
  expect_forward_refused("qwen3_next", kCorrupt, {"'linear_key_head_dim'"},
                         {{"/linear_key_head_dim", 0}});
  expect_forward_refused("qwen3_next", kCorrupt, {"linear_conv_kernel_dim"},
                         {{"/linear_conv_kernel_dim", 1000000}});
  expect_forward_refused("kimi_linear", kCorrupt, {"'linear_attn_config.kda_layers' has 9"},
                         {{"/linear_attn_config/kda_layers", {1, 9}}});
  expect_forward_refused("kimi_linear", kCorrupt, {"'linear_attn_config.num_heads'"},
                         {{"/linear_attn_config/num_heads", 0}});
  expect_forward_refused("kimi_linear", kUnsupported, {"'mla_use_nope' is false"},
                         {{"/mla_use_nope", false}});
  expect_forward_refused("kimi_linear", kUnsupported, {"'num_expert_group' is 2"},
                         {{"/num_expert_group", 2}});
  expect_forward_refused("bailing_hybrid", kUnsupported, {"'score_function' is 'softmax'"},
                         {{"/score_function", "softmax"}});
  expect_forward_refused("glm5_next", kCorrupt, {"'index_topk' is 18", "4 tokens of a pool"},
                         {{"/text_config/index_topk", 18}});
  expect_forward_refused("glm5_next", kUnsupported, {"'qk_rope_head_dim' is 8"},
                         {{"/text_config/qk_rope_head_dim", 8}});
  expect_forward_refused("glm5_next", kUnsupported, {"'index_kpool_always_select_tail' is false"},
                         {{"/text_config/index_kpool_always_select_tail", false}});
  expect_forward_refused("glm5_next", kCorrupt, {"'index_kpool'"},
                         {{"/text_config/index_kpool", 0}});
  expect_forward_refused("nemotron_h", kCorrupt, {"8 heads in 3 groups"}, {{"/n_groups", 3}});
  expect_forward_refused("nemotron_h", kUnsupported, {"'mlp_hidden_act' is 'gelu'"},
                         {{"/mlp_hidden_act", "gelu"}});
  expect_forward_refused("nemotron_h", kUnsupported, {"'moe_latent_size' is 8"},
                         {{"/moe_latent_size", 8}});
  expect_forward_refused("nemotron_h", kCorrupt, {"'ssm_state_size'"}, {{"/ssm_state_size", 0}});
}

TEST(AttentionSpecs, RefuseWhatIsNotComputed) {
  using enum ErrorCode;
  expect_forward_refused("dots1", kUnsupported, {"'sliding_window' is 8"},
                         {{"/sliding_window", 8}});
  expect_forward_refused("glm4_moe_lite", kUnsupported, {"'attention_bias' is true"},
                         {{"/attention_bias", true}});
  expect_forward_refused("hunyuan_v1_moe", kUnsupported, {"'use_cla' is true"},
                         {{"/use_cla", true}});
  expect_forward_refused("hunyuan_v1_moe", kUnsupported, {"'rope_type' is 'dynamic'"},
                         {{"/rope_scaling/alpha", 0}, {"/max_position_embeddings", 0}});
  expect_forward_refused("minimax_m2", kUnsupported, {"'scoring_func' is 'softmax'"},
                         {{"/scoring_func", "softmax"}});
  expect_forward_refused("minimax_m2", kUnsupported, {"'qk_norm_type' is 'per_head'"},
                         {{"/qk_norm_type", "per_head"}});
  expect_forward_refused("minimax_m2", kCorrupt, {"a rotated slice of 7 values"},
                         {{"/rotary_dim", 7}});
  expect_forward_refused("minimax_m2", kCorrupt, {"'rotary_dim'"}, {{"/rotary_dim", 64}});
}

TEST(AttentionSpecs, RefuseBlocksAndExpertsOfOtherKinds) {
  using enum ErrorCode;
  expect_forward_refused("longcat_flash", kUnsupported, {"'router_bias' is true"},
                         {{"/router_bias", true}});
  expect_forward_refused("longcat_flash", kUnsupported, {"'zero_expert_type' is 'drop'"},
                         {{"/zero_expert_type", "drop"}});
  const std::string sparse = "/text_config/sparse_attention_config/";
  expect_forward_refused("minimax_m3_vl", kUnsupported, {"3 index heads of 16 for 2 key heads"},
                         {{sparse + "sparse_num_index_heads", 3}});
  expect_forward_refused("minimax_m3_vl", kUnsupported, {"3 of 2 blocks"},
                         {{sparse + "sparse_local_block", 3}});
  expect_forward_refused("minimax_m3_vl", kUnsupported, {"sparse_init_block' is 1"},
                         {{sparse + "sparse_init_block", 1}});
  expect_forward_refused("minimax_m3_vl", kUnsupported, {"sparse_score_type' is 'mean'"},
                         {{sparse + "sparse_score_type", "mean"}});
  expect_forward_refused("minimax_m3_vl", kUnsupported, {"layer 1 has index values"},
                         {{sparse + "sparse_disable_index_value", {1, 0, 1}}});
  expect_forward_refused("minimax_m3_vl", kCorrupt, {"sparse_attention_freq' is [0,1]"},
                         {{sparse + "sparse_attention_freq", {0, 1}}});
  expect_forward_refused("minimax_m3_vl", kCorrupt, {"sparse_block_size' is missing or 0"},
                         {{sparse + "sparse_block_size", 0}});
}

TEST(ModelSpec, RefusesFamiliesWithoutAForwardPass) {
  expect_error(
      ErrorCode::kUnsupported,
      {"generic", "deepseek_v2, deepseek_v3, deepseek_v32", "llama", "qwen3, qwen3_5, qwen3_5_moe"},
      [&] { model_spec(*formats::find_family("generic"), config_of("examples/tiny-v32")); });
}

// Specs of models whose layers differ in kind, window, heads or sources.

TEST(LayeredSpecs, SayNothingOfLayersForPrediction) {
  for (const char* name : {"gpt_oss", "llama4"}) {
    const std::string key = name == std::string("llama4") ? "/text_config/" : "/";
    const ModelSpec spec = spec_of(std::string("tests/golden/families/") + name,
                                   {{key + "num_nextn_predict_layers", 1}});
    EXPECT_TRUE(spec.leaves_out_mtp) << name;
    EXPECT_EQ(spec.layers.size(), spec.n_main) << name;
  }
}

// The main layer of that kind has no positions; the config need not say the kind.
TEST(LayeredSpecs, GiveDenseMtpLayersTheirAttention) {
  const auto attention = [](const Edits& edits) {
    const ModelSpec spec = forward_spec("exaone_moe", edits);
    EXPECT_FALSE(spec.leaves_out_mtp);
    EXPECT_NE(spec.layers.at(4).find<MlpSpec>(), nullptr);
    EXPECT_TRUE(body<GroupedSpec>(spec, 1).rope.freqs.empty());
    EXPECT_FALSE(body<GroupedSpec>(spec, 4).rope.freqs.empty());
    return body<GroupedSpec>(spec, 4);
  };
  EXPECT_EQ(attention({}).window, 13U);
  EXPECT_EQ(attention({{"/mtp_layer_types", Json::array({"sliding_attention"})}}).window, 13U);
  EXPECT_EQ(attention({{"/mtp_layer_types", Json::array({"full_attention"})}}).window, 0U);
}

TEST(LayeredSpecs, RefuseLayersOfUnknownKinds) {
  using enum ErrorCode;
  const auto refused = [](const std::string& name, ErrorCode code,
                          std::initializer_list<std::string> fragments, const Edits& edits) {
    expect_error(code, fragments, [&] { spec_of("tests/golden/families/" + name, edits); });
  };
  refused("gpt_oss", kUnsupported, {"'layer_types' has 'chunked_attention' for layer 1"},
          {{"/layer_types/1", "chunked_attention"}});
  refused("gpt_oss", kCorrupt, {"'layer_types' is not a list for 2 layers"},
          {{"/layer_types", {"full_attention"}}});
  refused("gpt_oss", kCorrupt, {"'sliding_window'"}, {{"/sliding_window", 0}});
  refused("llama4", kCorrupt, {"'no_rope_layers' is not a list for 2 layers"},
          {{"/text_config/no_rope_layers", {1, 1, 1}}});
  refused("llama4", kCorrupt, {"'floor_scale'"}, {{"/text_config/floor_scale", 0}});
  refused("llama4", kCorrupt, {"rope scaling llama3 needs 'original_max_position_embeddings'"},
          {{"/text_config/rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}}});
  expect_forward_refused("mimo_v2_flash", kCorrupt,
                         {"4 heads of 24 over 3 key heads", "'num_key_value_heads'"},
                         {{"/swa_num_key_value_heads", 3}});
  expect_forward_refused("mimo_v2_flash", kCorrupt, {"'hybrid_layer_pattern' has 2"},
                         {{"/hybrid_layer_pattern", {0, 2, 1}}});
  expect_forward_refused("mimo_v2_flash", kCorrupt, {"'swa_head_dim'"}, {{"/swa_head_dim", 0}});
  expect_forward_refused("step3p7", kCorrupt, {"'swiglu_limits' is not a list for 3 layers"},
                         {{"/text_config/swiglu_limits", {1.0}}});
  expect_forward_refused("step3p7", kCorrupt, {"a part of a head"},
                         {{"/text_config/partial_rotary_factors", {0.5, 2.0, 0.5}}});
  expect_forward_refused("hy_v3", kUnsupported, {"'mlp_bias' is true"}, {{"/mlp_bias", true}});
}

TEST(DenseSpecs, GrowTheBaseOfRopeBehindTheLastPosition) {
  const auto freqs = [](const Edits& edits) {
    return body<GroupedSpec>(forward_spec("hunyuan_v1_dense", edits), 0).rope.freqs;
  };
  EXPECT_EQ(freqs({{"/rope_scaling/alpha", 0}}), freqs({{"/rope_scaling", nullptr}}));
  EXPECT_NE(freqs({{"/rope_scaling/alpha", 0}}), freqs({}));
}

TEST(DenseSpecs, RefuseWhatTheyCannotComputeByItsKey) {
  using enum ErrorCode;
  expect_forward_refused("apertus", kUnsupported, {"'hidden_act' is 'silu'"},
                         {{"/hidden_act", "silu"}});
  expect_forward_refused("phi", kUnsupported, {"'hidden_act' is 'gelu'"},
                         {{"/hidden_act", "gelu"}});
  expect_forward_refused("exaone", kUnsupported, {"'activation_function' is 'gelu'"},
                         {{"/activation_function", "gelu"}});
  expect_forward_refused("starcoder2", kUnsupported, {"'norm_type' is 'rms_norm'"},
                         {{"/norm_type", "rms_norm"}});
  expect_forward_refused("sarvam_mla", kUnsupported, {"'score_function' is 'softmax'"},
                         {{"/score_function", "softmax"}});
  expect_forward_refused("qwen3_5", kUnsupported, {"'output_gate_type' is 'tanh'"},
                         {{"/text_config/output_gate_type", "tanh"}});
  expect_forward_refused("qwen3_5", kCorrupt, {"slice of 3 values", "'partial_rotary_factor'"},
                         {{"/text_config/head_dim", 12},
                          {"/text_config/rope_parameters/partial_rotary_factor", 0.25}});
  expect_forward_refused("hunyuan_v1_dense", kUnsupported, {"'rope_type' is 'dynamic'"},
                         {{"/rope_scaling/alpha", 0}, {"/max_position_embeddings", 0}});
  expect_forward_refused("falcon_h1", kUnsupported, {"'mamba_use_mlp' is false"},
                         {{"/mamba_use_mlp", false}});
  expect_forward_refused("falcon_h1", kCorrupt, {"'ssm_multipliers.2' is \"x\""},
                         {{"/ssm_multipliers", Json::array({1, 1, "x", 1, 1})}});
  expect_forward_refused("falcon_h1", kCorrupt, {"'mlp_multipliers' has 1 entries"},
                         {{"/mlp_multipliers", Json::array({1})}});
}

TEST(LayeredSpecs, NeedTheExpertsOfTheirFamily) {
  expect_error(ErrorCode::kCorrupt, {"'n_routed_experts' is missing or 0"}, [] {
    spec_of("tests/golden/families/gpt_oss", {{"/num_local_experts", 0}});
  });
  for (const char* name : {"hunyuan_v1_moe", "kimi_linear", "bailing_hybrid", "qwen3_next"})
    expect_forward_refused(name, ErrorCode::kCorrupt, {"'n_routed_experts'"},
                           {{"/num_experts", 0}});
}

TEST(LayeredSpecs, TakeOptionsThatNoRecordingHas) {
  const ModelSpec plain = forward_spec("afmoe", {{"/mup_enabled", false}});
  EXPECT_EQ(plain.ends.embedding_factor, 1.0F);
  EXPECT_FALSE(plain.ends.rounds_embedding_factor);
  for (const char* name : {"afmoe", "laguna"})
    EXPECT_TRUE(body<GroupedSpec>(forward_spec(name, {{"/attention_bias", true}})).biases) << name;
}

TEST(LayeredSpecs, ScaleLongRopeWithShortFactors) {
  const RopeSpec rope =
      body<GroupedSpec>(forward_spec("phimoe", {{"/rope_scaling/long_mscale", 1.5},
                                                {"/rope_scaling/long_factor/0", 9}}))
          .rope;
  EXPECT_EQ(rope.magnitude, 1.5F);
  EXPECT_EQ(rope.freqs[0], 1.0F);
}

// Keys that no reader of these models takes; releases leave them null.
TEST(LayeredSpecs, LeaveOutWhatReadersDo) {
  EXPECT_EQ(body<GroupedSpec>(forward_spec("jamba", {{"/sliding_window", 6}})).window, 0U);
  const ModelSpec capped =
      forward_spec("gemma3_text", {{"/attn_logit_softcapping", 6.0}, {"/layer_types", nullptr}});
  EXPECT_FALSE(body<GroupedSpec>(capped).score_cap);
}

TEST(LayeredSpecs, NormStateSpacesByGroup) {
  const ModelSpec two =
      forward_spec("granitemoehybrid", {{"/mamba_n_groups", 2}, {"/mamba_d_state", 9}});
  EXPECT_EQ(body<StateSpaceSpec>(two).groups, 2U);
  EXPECT_EQ(body<StateSpaceSpec>(two).norm_groups, 0U);
}

TEST(LayeredSpecs, ReadInkling) {
  const std::string text = "/text_config/";
  const ModelSpec spec = forward_spec("inkling", {{text + "log_scaling_n_floor", 128}});
  EXPECT_EQ(spec.vocab, 104U);
  EXPECT_EQ(spec.stored_vocab, 112U);
  EXPECT_EQ(spec.layers[0].short_convolution, 4U);
  EXPECT_EQ(spec.ends.logit_divisor, 2.0F);
  EXPECT_EQ(body<GroupedSpec>(spec, 0).window, 16U);
  EXPECT_EQ(body<GroupedSpec>(spec, 0).distances->extent, 16U);
  EXPECT_FALSE(body<GroupedSpec>(spec, 0).growth);
  EXPECT_EQ(body<GroupedSpec>(spec, 2).window, 0U);
  EXPECT_EQ(body<GroupedSpec>(spec, 2).distances->extent, 64U);
  EXPECT_TRUE(body<GroupedSpec>(spec, 2).growth->is_smooth);
  EXPECT_EQ(spec.router()->weighed_shared, 2U);
}

TEST(LayeredSpecs, RefuseWhatInklingCannotBe) {
  using enum ErrorCode;
  const std::string text = "/text_config/";
  expect_forward_refused("inkling", kUnsupported, {"'shared_expert_sink' is false"},
                         {{text + "shared_expert_sink", false}});
  expect_forward_refused("inkling", kCorrupt, {"conv_kernel_size' is 1"},
                         {{text + "sconv_kernel_size", 1}});
  expect_forward_refused("inkling", kCorrupt, {"'d_rel'"}, {{text + "d_rel", 0}});
  expect_forward_refused("inkling", kCorrupt, {"'rel_extent'"}, {{text + "rel_extent", 0}});
  expect_forward_refused("inkling", kCorrupt, {"'sliding_window_size'"},
                         {{text + "sliding_window_size", 0}});
  expect_forward_refused("inkling", kCorrupt, {"4 heads of 24 over 3 key heads"},
                         {{text + "swa_num_key_value_heads", 3}});
  expect_forward_refused("inkling", kCorrupt, {"unpadded_vocab_size"},
                         {{text + "unpadded_vocab_size", 113}});
}

TEST(LayeredSpecs, ReadMistralLarge4) {
  const std::string text = "/text_config/";
  const ModelSpec spec = forward_spec("mistral_large4");
  EXPECT_EQ(spec.keys_of(1), 0U);
  EXPECT_EQ(spec.keys_of(2), 2U);
  EXPECT_EQ(spec.last_reader(0), 1U);
  EXPECT_EQ(body<LatentSpec>(spec, 2).rope_dim, 0U);
  EXPECT_EQ(body<LatentSpec>(spec, 2).nope, 24U);
  EXPECT_EQ(body<LatentSpec>(spec).rope.magnitude, 1.0F);
  EXPECT_EQ(spec.ends.logit_cap, 30.0F);
  EXPECT_THAT(indexers(spec), ElementsAre(true, true, true));
  const ModelSpec shared =
      forward_spec("mistral_large4", {{text + "index_topk_pattern", "FSF"},
                                      {text + "rope_parameters",
                                       {{"rope_type", "yarn"},
                                        {"rope_theta", 10000.0},
                                        {"factor", 4.0},
                                        {"original_max_position_embeddings", 512},
                                        {"attention_factor", 1.5}}}});
  EXPECT_THAT(indexers(shared), ElementsAre(true, false, true));
  EXPECT_EQ(body<LatentSpec>(shared).rope.magnitude, 1.5F);
}

TEST(LayeredSpecs, RefuseWhatMistralLarge4CannotBe) {
  using enum ErrorCode;
  const std::string text = "/text_config/";
  const auto sources = [&](std::initializer_list<double> layers) {
    return Edits{{text + "kv_source_layers", Json(layers)}};
  };
  expect_forward_refused("mistral_large4", kCorrupt, {"'kv_source_layers' has 2 for layer 1"},
                         sources({0, 2, 2}));
  expect_forward_refused("mistral_large4", kCorrupt, {"'kv_source_layers' has 0 for layer 2"},
                         sources({0, 0, 0}));
  expect_forward_refused("mistral_large4", kCorrupt, {"'kv_source_layers' has 0.5 for layer 1"},
                         sources({0, 0.5, 2}));
  expect_forward_refused("mistral_large4", kCorrupt, {"'kv_source_layers' is not a list for 3"},
                         sources({0, 0}));
  expect_forward_refused("mistral_large4", kCorrupt, {"'index_topk_pattern'"},
                         {{text + "index_topk_pattern", "FXF"}});
  expect_forward_refused("mistral_large4", kCorrupt, {"'no_rope_layers'"},
                         {{text + "no_rope_layers", Json({1, 1})}});
  expect_forward_refused("mistral_large4", kUnsupported, {"'q_lora_rank' is 8"},
                         {{text + "q_lora_rank", 8}});
  expect_forward_refused("mistral_large4", kUnsupported, {"'n_group' is 2"},
                         {{text + "n_group", 2}, {text + "topk_group", 2}});
}

TEST(ForwardSpecs, NewMixturesRefuseByTheKey) {
  using enum ErrorCode;
  const std::string text = "/text_config/";
  expect_forward_refused("cohere2_moe", kUnsupported, {"'expert_selection_fn' is 'best'"},
                         {{"/expert_selection_fn", "best"}});
  expect_forward_refused("cohere2_moe", kUnsupported,
                         {"'shared_expert_combination_strategy' is 'product'"},
                         {{"/shared_expert_combination_strategy", "product"}});
  expect_forward_refused("axk2", kCorrupt, {"'q_lora_rank'"}, {{"/q_lora_rank", 0}});
  expect_forward_refused("zaya", kUnsupported, {"'num_experts_per_tok' is 2"},
                         {{"/num_experts_per_tok", 2}});
  expect_forward_refused("zaya", kUnsupported, {"'layer_types' has 'sparse'", "layer 1"},
                         {{"/layer_types/1", "sparse"}});
  expect_forward_refused("inkling2", kUnsupported, {"'scoring_func' is 'softmax'"},
                         {{text + "scoring_func", "softmax"}});
  expect_forward_refused("inkling2_loop", kCorrupt, {"loop_layer_index_end", "runs of 2 layers"},
                         {{text + "loop_layer_index_end", 3}});
  expect_forward_refused("muse_glimmer", kUnsupported, {"'hidden_activation' is 'gelu'"},
                         {{text + "hidden_activation", "gelu"}});
}

TEST(ForwardSpecs, BeamGrowsQueriesWithoutRope) {
  const auto attention = [](const ModelSpec& spec, std::size_t layer) {
    return *spec.layers[layer].find<GroupedSpec>();
  };
  const ModelSpec usual = forward_spec("beam");
  EXPECT_FALSE(attention(usual, 0).growth);
  EXPECT_TRUE(attention(usual, 1).rope.freqs.empty());
  EXPECT_TRUE(attention(usual, 1).growth->is_power);
  const ModelSpec turned =
      forward_spec("beam", {{"/rope_parameters/full_attention", {{"rope_theta", 100.0}}}});
  EXPECT_FALSE(attention(turned, 1).growth);
  EXPECT_FALSE(attention(turned, 1).rope.freqs.empty());
}

TEST(ForwardSpecs, LoopsAreReadInBothSpellings) {
  const Json loop = {{"core_start", 2}, {"core_end", 4}, {"num_passes", 5}, {"gate_rank", 9}};
  const ModelSpec spec = forward_spec("inkling2_loop", {{"/text_config/loop_config", loop}});
  EXPECT_EQ(spec.loop, (LoopSpec{.first = 2, .end = 4, .passes = 5, .rank = 9}));
  EXPECT_EQ(spec.visits(1), 1U);
  EXPECT_EQ(spec.visits(3), 5U);
}

}  // namespace
}  // namespace ingot::inference
