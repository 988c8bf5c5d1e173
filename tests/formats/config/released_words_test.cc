#include "formats/config/released_words.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/json/json.h"

// That every saved config gives the model of the released one is tested in inference/model.

namespace ingot::formats {
namespace {

Json released(std::string_view text) {
  Json keys = parse_json(text, "config.json");
  use_released_words(keys);
  return keys;
}

TEST(ReleasedWords, LayersOfNemotronAreLetters) {
  const Json keys = released(
      R"({"layers_block_type": ["mamba", "full_attention", "moe", "mlp"],
          "mtp_layers_block_type": ["attention", "moe"]})");
  EXPECT_EQ(keys.at("hybrid_override_pattern"), "M*E-");
  EXPECT_EQ(keys.at("mtp_hybrid_override_pattern"), "*E");
  EXPECT_EQ(keys.at("num_hidden_layers"), 4);
  EXPECT_FALSE(keys.contains("layers_block_type"));
}

TEST(ReleasedWords, RopeOfCompressedLayersStandsApart) {
  const Json keys = released(R"({"rope_parameters": {
      "main": {"rope_type": "default", "rope_theta": 10000},
      "compress": {"rope_type": "yarn", "rope_theta": 160000, "factor": 16,
                   "attention_factor": 1.0}}})");
  EXPECT_EQ(keys, parse_json(R"({"rope_theta": 10000, "compress_rope_theta": 160000,
      "rope_scaling": {"rope_type": "yarn", "factor": 16}})",
                             ""));
}

TEST(ReleasedWords, HeadsOfFullLayersOfGemmaHaveKeys) {
  const std::string types = R"("layer_types": ["sliding_attention", "full_attention"], )";
  const Json both = released(
      "{" + types + R"("per_layer_config": {"1": {"head_dim": 64, "num_key_value_heads": 3}}})");
  EXPECT_EQ(both.at("global_head_dim"), 64);
  EXPECT_EQ(both.at("num_global_key_value_heads"), 3);
  EXPECT_FALSE(both.contains("per_layer_config"));
  const Json one = released("{" + types + R"("per_layer_config": {"1": {"head_dim": 64}}})");
  EXPECT_EQ(one.at("global_head_dim"), 64);
  EXPECT_FALSE(one.contains("num_global_key_value_heads"));
  for (const char* other :
       {R"({"0": {"head_dim": 64}})", R"({"1": {"head_dim": 64}, "0": {"head_dim": 64}})",
        R"({"1": {"num_attention_heads": 64}})", R"({"1": 64})", R"({"1": {}})", "{}"}) {
    const std::string text = "{" + types + R"("per_layer_config": )" + other + "}";
    EXPECT_EQ(released(text), parse_json(text, "")) << other;
  }
}

TEST(ReleasedWords, LastLayersOfGemma4HaveFullAttention) {
  const std::string sliding = R"("layer_types": ["sliding_attention", "sliding_attention"]})";
  const Json full = {"sliding_attention", "full_attention"};
  for (const char* type : {"gemma4", "gemma4_text"}) {
    const Json keys = released(fmt::format(R"({{"model_type": "{}", {})", type, sliding));
    EXPECT_EQ(keys.at("layer_types"), full) << type;
  }
  const std::string other = R"({"model_type": "gemma2", )" + sliding;
  EXPECT_EQ(released(other), parse_json(other, ""));
}

TEST(ReleasedWords, APatternOfWindowsIsAListOfLayers) {
  const Json types = {"sliding_attention", "sliding_attention", "full_attention",
                      "sliding_attention"};
  for (const char* key :
       {"sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers"}) {
    const Json keys = released(fmt::format(R"({{"num_hidden_layers": 4, "{}": 3}})", key));
    EXPECT_EQ(keys, Json({{"num_hidden_layers", 4}, {"layer_types", types}}));
  }
}

TEST(ReleasedWords, KeysOfInnerObjectsAreThoseOfTheModel) {
  const std::string inner = R"("attn_config": {"kv_n_heads": 2, "rope_theta": 500000},
      "ffn_config": {"moe_num_experts": 7, "moe_top_k": 3, "ffn_hidden_size": 52})";
  const Json keys = released("{" + inner + "}");
  EXPECT_EQ(keys.at("num_key_value_heads"), 2);
  EXPECT_EQ(keys.at("rope_theta"), 500000);
  EXPECT_EQ(keys.at("n_routed_experts"), 7);
  EXPECT_EQ(keys.at("num_experts_per_tok"), 3);
  EXPECT_EQ(keys.at("moe_intermediate_size"), 52);
  const Json said = released(
      R"({"rope_parameters": {"rope_theta": 10000}, "num_local_experts": 8, )" + inner + "}");
  EXPECT_FALSE(said.contains("rope_theta"));
  EXPECT_FALSE(said.contains("n_routed_experts"));
}

TEST(ReleasedWords, AutomaticWidthsOfStateSpacesAreNumbers) {
  EXPECT_EQ(released(R"({"hidden_size": 100, "mamba_dt_rank": "auto"})").at("mamba_dt_rank"), 7);
  const std::string rest = R"("mamba_expand": 3, "mamba_d_head": "auto"})";
  EXPECT_EQ(released(R"({"hidden_size": 40, "mamba_n_heads": 5, )" + rest).at("mamba_d_head"), 24);
  const std::string none = R"({"hidden_size": 40, "mamba_n_heads": 0, )" + rest;
  EXPECT_EQ(released(none), parse_json(none, ""));
}

TEST(ReleasedWords, DenseLayersOfExaoneAreListed) {
  const Json kinds = {"dense", "dense", "sparse"};
  for (const char* said :
       {R"("is_moe_layer": [false, false, true])", R"("first_k_dense_replace": 2)"}) {
    const Json keys = released(
        fmt::format(R"({{"model_type": "exaone_moe", "num_hidden_layers": 3, {}}})", said));
    EXPECT_EQ(keys.at("mlp_layer_types"), kinds);
  }
}

TEST(ReleasedWords, LinearAttentionOfKimiIsAnObject) {
  const Json keys = released(R"({"model_type": "kimi_linear", "linear_head_dim": 16,
      "linear_num_heads": 4, "linear_conv_kernel_dim": 3,
      "layer_types": ["linear_attention", "full_attention", "linear_attention"]})");
  EXPECT_EQ(keys, parse_json(R"({"model_type": "kimi_linear", "linear_attn_config": {
      "kda_layers": [1, 3], "full_attn_layers": [2], "head_dim": 16, "num_heads": 4,
      "short_conv_kernel_size": 3}})",
                             ""));
}

TEST(ReleasedWords, GatesOfGlmHaveABoundOrNone) {
  const auto gate = [](const char* bound) {
    return released(
               fmt::format(
                   R"({{"model_type": "glm5_next_text", "linear_head_dim": 16, "linear_lower_bound": {}}})",
                   bound))
        .at("linear_attn_config");
  };
  EXPECT_EQ(gate("-4.0"),
            Json({{"head_dim", 16}, {"gate_lower_bound", -4.0}, {"safe_gate", true}}));
  EXPECT_EQ(gate("null"), Json({{"head_dim", 16}, {"safe_gate", false}}));
}

TEST(ReleasedWords, WindowsOfMimoAreOnes) {
  const Json keys = released(R"({"model_type": "mimo_v2_flash", "num_key_value_heads": 2,
      "layer_types": ["full_attention", "sliding_attention"],
      "mlp_layer_types": ["dense", "sparse"],
      "rope_parameters": {"full_attention": {"rope_theta": 5000000, "partial_rotary_factor": 0.5},
          "sliding_attention": {"rope_theta": 10000, "partial_rotary_factor": 0.5}}})");
  EXPECT_EQ(keys, parse_json(R"({"model_type": "mimo_v2_flash", "num_key_value_heads": 2,
      "hybrid_layer_pattern": [0, 1], "swa_num_key_value_heads": 4, "moe_layer_freq": [0, 1],
      "rope_theta": 5000000, "swa_rope_theta": 10000, "partial_rotary_factor": 0.5})",
                             ""));
}

TEST(ReleasedWords, TheClassOfLingKeepsTheRotatedPart) {
  const std::string rest = R"("qk_rope_head_dim": 8, "linear_head_dim": 16})";
  EXPECT_EQ(released(R"({"model_type": "bailing_hybrid", "head_dim": 8, )" + rest).at("head_dim"),
            16);
  const std::string other = R"({"model_type": "bailing_hybrid", "head_dim": 24, )" + rest;
  EXPECT_EQ(released(other), parse_json(other, ""));
}

TEST(ReleasedWords, BothFormsWithOneMeaningAreTheReleasedOne) {
  for (const auto& [words, key] :
       {std::pair(R"("layers_block_type": ["moe"])", R"("hybrid_override_pattern": "E")"),
        std::pair(R"("sliding_window_pattern": 2)",
                  R"("layer_types": ["sliding_attention", "full_attention"])")}) {
    const std::string layers = R"({"num_hidden_layers": )";
    const std::string n = key[1] == 'h' ? "1, " : "2, ";
    EXPECT_EQ(released(layers + n + words + ", " + key + "}"),
              parse_json(layers + n + key + "}", ""));
  }
}

TEST(ReleasedWords, OtherMeaningsAreTold) {
  Json keys = parse_json(R"({"model_type": "kimi_linear", "linear_head_dim": 16,
      "linear_attn_config": {"head_dim": 24}})",
                         "");
  std::vector<SaidTwice> twice;
  EXPECT_FALSE(use_released_words(keys, &twice));
  ASSERT_EQ(twice.size(), 1U);
  EXPECT_EQ(twice[0].key, "linear_attn_config.head_dim");
  EXPECT_EQ(*twice[0].value, 24);
  EXPECT_EQ(twice[0].words, "linear_head_dim");
  EXPECT_EQ(*twice[0].meaning, 16);
}

TEST(ReleasedWords, WhatHasAnotherFormStaysAsItIs) {
  for (const std::string_view text : {
           "[]",
           "3",
           R"({"layers_block_type": ["mamba", 3]})",
           R"({"layers_block_type": ["snail"]})",
           R"({"layers_block_type": ["moe"], "hybrid_override_pattern": "M"})",
           R"({"mlp_layer_types": ["moe"]})",
           R"({"mlp_layer_types": ["moe", "hash_moe"], "compress_ratios": [0, 4]})",
           R"({"mlp_layer_types": ["hash_moe"], "compress_ratios": [0], "num_hash_layers": 2})",
           R"({"compress_rates": 4, "layer_types": ["sliding_attention"]})",
           R"({"compress_rates": {}, "layer_types": ["full_attention"]})",
           R"({"rope_parameters": {"main": {"rope_type": "yarn"}, "compress": {}}})",
           R"({"rope_parameters": {"main": {}, "compress": {"attention_factor": 2}}})",
           R"({"sliding_window_pattern": "LLLG", "num_hidden_layers": 4})",
           R"({"sliding_window_pattern": 0, "num_hidden_layers": 4})",
           R"({"sliding_window_pattern": 2, "num_hidden_layers": 4, "layer_types": []})",
           R"({"index_topk_blocks": 2, "layer_types": ["linear_attention"]})",
           R"({"num_sliding_attention_heads": 6, "layer_types": ["sliding_attention"],
               "per_layer_config": {"0": {"head_dim": 6}}})",
       }) {
    Json keys = parse_json(text, "config.json");
    const Json before = keys;
    EXPECT_FALSE(use_released_words(keys)) << text;
    EXPECT_EQ(keys, before);
  }
}

}  // namespace
}  // namespace ingot::formats
