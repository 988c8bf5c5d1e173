// Specs of models whose layers differ in kind, window, heads or sources.

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "inference/model/recurrent/state_space.h"
#include "tests/inference/family/read_spec.h"

namespace ingot::inference {
namespace {

using formats::Json;
using namespace ingot::testing;
using ::testing::ElementsAre;

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
  expect_forward_refused("mimo_v2_flash", kCorrupt, {"4 heads of 24 over 3 key heads"},
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

}  // namespace
}  // namespace ingot::inference
