#include "formats/config/native_config.h"

#include <gtest/gtest.h>

#include "formats/base/fd.h"
#include "formats/family/family.h"
#include "formats/json/json.h"
#include "tests/support/expect_error.h"

namespace ingot::formats {
namespace {

using ingot::testing::expect_error;

ModelConfig reference(std::string_view family) {
  return parse_model_config(find_family(family)->reference_config, "reference");
}

/// The reference config of V3 with some keys changed; null takes one away.
ModelConfig changed(const Json& keys) {
  Json config = reference("deepseek_v3").raw;
  config.merge_patch(keys);
  return parse_model_config(config.dump(), "changed");
}

/// Order is of no meaning to the reader.
void expect_same(const Json& actual, const char* expected) {
  EXPECT_EQ(nlohmann::json::parse(actual.dump()), nlohmann::json::parse(expected));
}

// DeepSeek's config_671B.json, and what its ModelArgs has for the keys that this file leaves out.
TEST(NativeConfig, EqualsDeepseeksForReleasedV3) {
  expect_same(native_config(reference("deepseek_v3"), true), R"({
    "vocab_size": 129280, "dim": 7168, "inter_dim": 18432, "moe_inter_dim": 2048, "n_layers": 61,
    "n_dense_layers": 3, "n_heads": 128, "n_routed_experts": 256, "n_shared_experts": 1,
    "n_activated_experts": 8, "n_expert_groups": 8, "n_limited_groups": 4, "route_scale": 2.5,
    "score_func": "sigmoid", "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "dtype": "fp8",
    "original_seq_len": 4096, "rope_theta": 10000, "rope_factor": 40, "beta_fast": 32,
    "beta_slow": 1, "mscale": 1
  })");
}

// config_16B.json, likewise.
TEST(NativeConfig, EqualsDeepseeksForReleasedV2Lite) {
  expect_same(native_config(reference("deepseek_v2"), false), R"({
    "vocab_size": 102400, "dim": 2048, "inter_dim": 10944, "moe_inter_dim": 1408, "n_layers": 27,
    "n_dense_layers": 1, "n_heads": 16, "n_routed_experts": 64, "n_shared_experts": 2,
    "n_activated_experts": 6, "route_scale": 1.0, "q_lora_rank": 0, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "mscale": 0.707,
    "dtype": "bf16", "n_expert_groups": 1, "n_limited_groups": 1, "score_func": "softmax",
    "original_seq_len": 4096, "rope_theta": 10000, "rope_factor": 40, "beta_fast": 32,
    "beta_slow": 1
  })");
}

TEST(NativeConfig, HasIndexerAndScalesOfTheExample) {
  constexpr const char* kPath = INGOT_SOURCE_DIR "/examples/tiny-v32/config.json";
  const ModelConfig config = parse_model_config(read_text_file(kPath, 1 << 20), kPath);
  expect_same(native_config(config, true), R"({
    "vocab_size": 2048, "dim": 256, "inter_dim": 640, "moe_inter_dim": 128, "n_layers": 5,
    "n_dense_layers": 1, "n_heads": 8, "n_routed_experts": 16, "n_shared_experts": 1,
    "n_activated_experts": 4, "n_expert_groups": 4, "n_limited_groups": 2, "route_scale": 2.5,
    "score_func": "sigmoid", "q_lora_rank": 128, "kv_lora_rank": 128, "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16, "v_head_dim": 32, "dtype": "fp8", "scale_fmt": "ue8m0",
    "original_seq_len": 256, "rope_theta": 10000, "rope_factor": 4, "beta_fast": 32,
    "beta_slow": 1, "mscale": 1, "index_n_heads": 4, "index_head_dim": 128, "index_topk": 64
  })");
  const Json bf16 = native_config(config, false);
  EXPECT_EQ(bf16.at("dtype"), "bf16");
  EXPECT_FALSE(bf16.contains("scale_fmt"));
}

TEST(NativeConfig, TurnsYarnOffWhereTheModelHasNone) {
  const Json plain = native_config(changed({{"rope_scaling", nullptr}}), true);
  EXPECT_EQ(plain.at("rope_factor"), 1);
  EXPECT_FALSE(plain.contains("original_seq_len"));
  EXPECT_FALSE(plain.contains("mscale"));
}

TEST(NativeConfig, TakesAbsentScoresFromTheFamily) {
  EXPECT_EQ(native_config(changed({{"scoring_func", nullptr}}), true).at("score_func"), "sigmoid");
  Json v2 = reference("deepseek_v2").raw;
  v2.erase("scoring_func");
  EXPECT_EQ(native_config(parse_model_config(v2.dump(), "v2"), false).at("score_func"), "softmax");
}

TEST(NativeConfig, HasNoGroupsWhereTheModelIgnoresThem) {
  const Json config = native_config(changed({{"topk_method", "greedy"}}), true);
  EXPECT_EQ(config.at("n_expert_groups"), 1);
  EXPECT_EQ(config.at("n_limited_groups"), 1);
}

TEST(NativeConfig, RefusesModelsThatTheCodeComputesDifferently) {
  const auto expect_refused = [](const Json& keys, const std::string& fragment) {
    expect_error(ErrorCode::kUnsupported, {"config.json", fragment},
                 [&] { native_config(changed(keys), true); });
  };
  expect_refused({{"moe_layer_freq", 2}}, "moe_layer_freq");
  expect_refused({{"rope_scaling", {{"mscale_all_dim", 0.707}}}}, "mscale");
  expect_refused({{"rope_scaling", {{"mscale_all_dim", nullptr}}}}, "mscale");
  expect_refused({{"rope_scaling", {{"mscale_all_dim", nullptr}, {"mscale", nullptr}}}}, "mscale");
  expect_refused({{"rope_scaling", {{"factor", nullptr}}}}, "factor");
  expect_refused({{"rope_scaling", {{"type", "linear"}}}}, "linear");
  expect_refused({{"scoring_func", "sqrtsoftplus"}}, "sqrtsoftplus");
  expect_refused({{"norm_topk_prob", false}}, "norm_topk_prob");
  expect_refused({{"scoring_func", "softmax"}}, "norm_topk_prob");
  expect_refused({{"rms_norm_eps", 1e-5}}, "rms_norm_eps");
  expect_refused({{"attention_bias", true}}, "attention_bias");
  expect_refused({{"tie_word_embeddings", true}}, "tie_word_embeddings");
}

TEST(NativeConfig, NamesAKeyOfTheWrongType) {
  expect_error(ErrorCode::kCorrupt, {"config.json", "n_group"}, [] {
    native_config(changed({{"n_group", "8"}}), true);
  });
  expect_error(ErrorCode::kCorrupt, {"config.json", "routed_scaling_factor"}, [] {
    native_config(changed({{"routed_scaling_factor", true}}), true);
  });
}

}  // namespace
}  // namespace ingot::formats
