#include "formats/config/model_config.h"

#include "formats/base/fd.h"
#include "formats/config/ngram_table.h"
#include "formats/json/json.h"
#include "tests/support/test.h"

namespace ingot::formats {
namespace {

using ::testing::ElementsAre;
using testing::expect_error;

ModelConfig parse(std::string_view text) {
  return parse_model_config(text, "config.json");
}

TEST(ModelConfig, ReadsTheBundledCheckpoint) {
  const auto text = read_text_file(INGOT_SOURCE_DIR "/examples/tiny-v32/config.json", 1 << 20);
  const ModelConfig config = parse(text);
  EXPECT_EQ(config.model_type, "deepseek_v32");
  EXPECT_EQ(config.architecture, "DeepseekV32ForCausalLM");
  EXPECT_EQ(config.dtype, "bfloat16");
  EXPECT_EQ(config.vocab_size, 2048U);
  EXPECT_EQ(config.hidden_size, 256U);
  EXPECT_EQ(config.intermediate_size, 640U);
  EXPECT_EQ(config.moe_intermediate_size, 128U);
  EXPECT_EQ(config.num_hidden_layers, 5U);
  EXPECT_EQ(config.num_nextn_predict_layers, 1U);
  EXPECT_EQ(config.num_attention_heads, 8U);
  EXPECT_EQ(config.num_key_value_heads, 8U);
  EXPECT_EQ(config.n_routed_experts, 16U);
  EXPECT_EQ(config.n_shared_experts, 1U);
  EXPECT_EQ(config.num_experts_per_tok, 4U);
  EXPECT_EQ(config.q_lora_rank, 128U);
  EXPECT_EQ(config.kv_lora_rank, 128U);
  EXPECT_EQ(config.qk_nope_head_dim, 32U);
  EXPECT_EQ(config.qk_rope_head_dim, 16U);
  EXPECT_EQ(config.v_head_dim, 32U);
  EXPECT_EQ(config.index_n_heads, 4U);
  EXPECT_EQ(config.index_head_dim, 128U);
  EXPECT_EQ(config.index_topk, 64U);
  EXPECT_EQ(config.max_position_embeddings, 1024U);
  EXPECT_DOUBLE_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_EQ(config.topk_method, "noaux_tc");
  EXPECT_EQ(config.scoring_func, "sigmoid");
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_FALSE(config.attention_bias);
  EXPECT_EQ(config.rope.type, "yarn");
  EXPECT_DOUBLE_EQ(config.rope.theta, 10000.0);
  EXPECT_EQ(config.rope.factor, 4.0);
  EXPECT_EQ(config.rope.beta_fast, 32.0);
  EXPECT_EQ(config.rope.beta_slow, 1.0);
  EXPECT_EQ(config.rope.mscale, 1.0);
  EXPECT_EQ(config.rope.mscale_all_dim, 1.0);
  EXPECT_EQ(config.rope.original_max_position_embeddings, 256U);
  ASSERT_TRUE(config.quantization);
  EXPECT_EQ(config.quantization->quant_method, "fp8");
  EXPECT_EQ(config.quantization->fmt, "e4m3");
  EXPECT_EQ(config.quantization->activation_scheme, "dynamic");
  EXPECT_EQ(config.quantization->scale_fmt, "ue8m0");
  EXPECT_EQ(config.quantization->weight_block_size, (std::array<std::uint64_t, 2>{128, 128}));
  EXPECT_THAT(config.layer_is_moe, ElementsAre(false, true, true, true, true));
  EXPECT_EQ(*config.raw, parse_json(text, "config.json"));
}

TEST(ModelConfig, AbsentKeysAreZeroEmptyOrNull) {
  const ModelConfig config = parse("{}");
  EXPECT_EQ(config.model_type, "");
  EXPECT_EQ(config.architecture, "");
  EXPECT_EQ(config.num_hidden_layers, 0U);
  EXPECT_EQ(config.q_lora_rank, 0U);
  EXPECT_EQ(config.rope.type, "default");
  EXPECT_DOUBLE_EQ(config.rope.theta, 10000.0);
  EXPECT_FALSE(config.rope.factor);
  EXPECT_FALSE(config.quantization);
  EXPECT_TRUE(config.layer_is_moe.empty());
}

TEST(ModelConfig, HasALimitOfValues) {
  std::string text = R"({"model_type": "deepseek_v3", "x": [0)";
  for (std::size_t n = 0; n < (std::size_t{1} << 20); ++n) text += ",0";
  expect_error(ErrorCode::kLimit, {"config.json", "more than 1048576 values"},
               [&] { parse_model_config(text + "]}", "config.json"); });
}

TEST(ModelConfig, NullCountsAsAbsent) {
  const ModelConfig config =
      parse(R"({"model_type": null, "architectures": null, "hidden_size": null,
      "q_lora_rank": null, "num_attention_heads": 4, "num_key_value_heads": null, "rope_scaling": null,
      "rope_parameters": null, "quantization_config": null, "dtype": null, "torch_dtype": "float16",
      "rms_norm_eps": null, "tie_word_embeddings": null, "mlp_layer_types": null, "n_routed_experts": null,
      "num_experts": 3, "num_hidden_layers": 1, "moe_layer_freq": null, "decoder_sparse_step": null})");
  EXPECT_EQ(config.q_lora_rank, 0U);
  EXPECT_EQ(config.num_key_value_heads, 4U);
  EXPECT_EQ(config.dtype, "float16");
  EXPECT_EQ(config.n_routed_experts, 3U);
  EXPECT_FALSE(config.quantization);
  EXPECT_THAT(config.layer_is_moe, ElementsAre(true));
  EXPECT_TRUE(config.raw->contains("q_lora_rank"));
}

TEST(ModelConfig, NewSpellingsWin) {
  const ModelConfig config = parse(R"({"dtype": "bfloat16", "torch_dtype": "float32",
      "rope_theta": 1, "rope_scaling": {"type": "linear", "factor": 2, "beta_fast": 5},
      "rope_parameters": {"rope_type": "yarn", "type": "old", "rope_theta": 50000.0, "factor": 40,
                          "original_max_position_embeddings": 4096, "mscale": 0.707}})");
  EXPECT_EQ(config.dtype, "bfloat16");
  EXPECT_EQ(config.rope.type, "yarn");
  EXPECT_DOUBLE_EQ(config.rope.theta, 50000.0);
  EXPECT_EQ(config.rope.factor, 40.0);
  EXPECT_FALSE(config.rope.beta_fast);
  EXPECT_EQ(config.rope.mscale, 0.707);
  EXPECT_EQ(config.rope.original_max_position_embeddings, 4096U);
}

TEST(ModelConfig, RopeParametersWithoutThetaKeepTheOuterOne) {
  const ModelConfig config =
      parse(R"({"rope_theta": 1000000, "rope_parameters": {"type": "default"}})");
  EXPECT_DOUBLE_EQ(config.rope.theta, 1e6);
  EXPECT_EQ(config.rope.type, "default");
}

TEST(ModelConfig, ExpertsHaveThreeNamesThatMustAgree) {
  for (const char* key : {"n_routed_experts", "num_experts", "num_local_experts"}) {
    EXPECT_EQ(parse(fmt::format(R"({{"{}": 128}})", key)).n_routed_experts, 128U) << key;
  }
  EXPECT_EQ(parse(R"({"num_experts": 8, "num_local_experts": 8})").n_routed_experts, 8U);
  expect_error(ErrorCode::kCorrupt,
               {"config.json: ", "'num_local_experts' is 9, but 'num_experts' is 8"},
               [] { parse(R"({"num_experts": 8, "num_local_experts": 9})"); });
}

std::vector<bool> moe_layers(const std::string& members) {
  return parse("{\"num_hidden_layers\": 6, \"n_routed_experts\": 8, " + members + "}").layer_is_moe;
}

TEST(ModelConfig, DensePrefixAndFrequencyPlaceTheMixtures) {
  EXPECT_THAT(moe_layers(R"("first_k_dense_replace": 2)"), ElementsAre(0, 0, 1, 1, 1, 1));
  EXPECT_THAT(moe_layers(R"("first_k_dense_replace": 0, "moe_layer_freq": 1)"),
              ElementsAre(1, 1, 1, 1, 1, 1));
  EXPECT_THAT(moe_layers(R"("first_k_dense_replace": 1, "moe_layer_freq": 2)"),
              ElementsAre(0, 0, 1, 0, 1, 0));
  EXPECT_THAT(moe_layers(R"("first_k_dense_replace": 9)"), ElementsAre(0, 0, 0, 0, 0, 0));
  EXPECT_THAT(moe_layers(R"("moe_layer_freq": [0, 1, 1, 0, 1, 1])"), ElementsAre(0, 1, 1, 0, 1, 1));
  EXPECT_THAT(moe_layers(R"("x": 0)"), ElementsAre(1, 1, 1, 1, 1, 1));
}

TEST(ModelConfig, LayerTypesWinOverTheDensePrefix) {
  EXPECT_THAT(moe_layers(R"("first_k_dense_replace": 5,
      "mlp_layer_types": ["dense", "sparse", "dense", "sparse", "sparse", "dense"])"),
              ElementsAre(0, 1, 0, 1, 1, 0));
  // One more entry for an MTP layer.
  EXPECT_THAT(moe_layers(R"("num_nextn_predict_layers": 1,
      "mlp_layer_types": ["dense", "dense", "dense", "sparse", "sparse", "sparse", "sparse"])"),
              ElementsAre(0, 0, 0, 1, 1, 1));
}

TEST(ModelConfig, SparseStepCountsLayersFromOne) {
  EXPECT_THAT(moe_layers(R"("decoder_sparse_step": 1, "mlp_only_layers": [])"),
              ElementsAre(1, 1, 1, 1, 1, 1));
  EXPECT_THAT(moe_layers(R"("decoder_sparse_step": 2)"), ElementsAre(0, 1, 0, 1, 0, 1));
  EXPECT_THAT(moe_layers(R"("decoder_sparse_step": 2, "mlp_only_layers": [1, 2])"),
              ElementsAre(0, 0, 0, 1, 0, 1));
  EXPECT_THAT(moe_layers(R"("mlp_only_layers": [0])"), ElementsAre(0, 1, 1, 1, 1, 1));
}

TEST(ModelConfig, ModelWithoutExpertsIsDense) {
  EXPECT_THAT(parse(R"({"num_hidden_layers": 2})").layer_is_moe, ElementsAre(false, false));
  EXPECT_THAT(
      parse(R"({"num_hidden_layers": 2, "decoder_sparse_step": 1, "num_experts": 0})").layer_is_moe,
      ElementsAre(false, false));
}

TEST(NestedModelConfig, TextKeysWinAndTheWholeFillsIn) {
  for (const char* key : {"text_config", "llm_config", "language_config"}) {
    const ModelConfig config = parse(fmt::format(
        R"({{"model_type": "whole", "architectures": ["Whole"], "vocab_size": 7, "hidden_size": 8,
            "{}": {{"model_type": "text", "architectures": ["Text"], "hidden_size": 16,
                    "head_dim": null}}}})",
        key));
    EXPECT_EQ(config.text.key, key);
    EXPECT_EQ(config.model_type, "whole");
    EXPECT_EQ(config.text.model_type, "text");
    EXPECT_EQ(config.architecture, "Whole");
    EXPECT_EQ(config.vocab_size, 7U);
    EXPECT_EQ(config.hidden_size, 16U);
    EXPECT_EQ(config.raw->at("hidden_size"), 8);
  }
}

TEST(NestedModelConfig, QuantizationOnTopWins) {
  const ModelConfig both = parse(
      R"({"quantization_config": {"quant_method": "fp8"},
          "text_config": {"quantization_config": {"quant_method": "awq"}}})");
  EXPECT_EQ(both.quantization->quant_method, "fp8");
  EXPECT_FALSE(both.text.holds_quantization);
  const ModelConfig inside =
      parse(R"({"text_config": {"quantization_config": {"quant_method": "awq"}}})");
  EXPECT_EQ(inside.quantization->quant_method, "awq");
  EXPECT_FALSE(inside.text.holds_quantization);
  EXPECT_TRUE(parse(R"({"model_type": "kimi_k3",
                        "text_config": {"quantization_config": {"quant_method": "awq"}}})")
                  .text.holds_quantization);
  EXPECT_FALSE(parse(R"({"model_type": "kimi_k3", "text_config": {}})").text.holds_quantization);
  EXPECT_TRUE(parse(R"({"model_type": "kimi_k25", "text_config": {}})").text.holds_quantization);
}

TEST(NestedModelConfig, TyingOfTheWholeModelHoldsForItsText) {
  const auto is_tied = [](const char* outer, const char* inner) {
    constexpr const char* kBoth =
        R"({{"tie_word_embeddings": {}, "text_config": {{"tie_word_embeddings": {}}}}})";
    return parse(fmt::format(fmt::runtime(kBoth), outer, inner)).tie_word_embeddings;
  };
  EXPECT_TRUE(is_tied("true", "false"));
  EXPECT_TRUE(is_tied("true", "null"));
  EXPECT_TRUE(is_tied("false", "true"));
  EXPECT_FALSE(is_tied("false", "false"));
}

TEST(NestedModelConfig, NeedsAnObject) {
  for (const char* text : {"[]", "null", "1", "\"text\""}) {
    const ModelConfig config =
        parse(fmt::format(R"({{"hidden_size": 8, "text_config": {}}})", text));
    EXPECT_EQ(config.text.key, "");
    EXPECT_EQ(config.hidden_size, 8U);
  }
}

TEST(NestedModelConfig, RefusesWhatAFlatOneDoes) {
  expect_error(ErrorCode::kCorrupt, {"config.json", "hidden_size"},
               [] { parse(R"({"text_config": {"hidden_size": -1}})"); });
  expect_error(ErrorCode::kCorrupt, {"full_attention_interval"}, [] {
    parse(R"({"text_config": {"linear_num_value_heads": 2, "full_attention_interval": 0}})");
  });
  expect_error(ErrorCode::kCorrupt, {"layer_types"}, [] {
    parse(R"({"text_config": {"num_hidden_layers": 3, "linear_num_value_heads": 2,
                              "layer_types": ["linear_attention"]}})");
  });
}

TEST(ModelConfig, LinearAttentionStandsInAllButEveryNthLayer) {
  const ModelConfig config = parse(
      R"({"num_hidden_layers": 4, "linear_num_value_heads": 2, "full_attention_interval": 2})");
  EXPECT_THAT(config.layer_is_linear, ElementsAre(true, false, true, false));
  EXPECT_TRUE(parse(R"({"num_hidden_layers": 4})").layer_is_linear.empty());
}

TEST(ModelConfig, SharedExpertsAreThoseOfTheModelType) {
  const auto n_shared = [](const char* json) { return parse(json).n_shared_experts; };
  EXPECT_EQ(n_shared(R"({"model_type": "ernie4_5_moe"})"), 2U);
  EXPECT_EQ(n_shared(R"({"model_type": "ernie4_5_moe", "moe_num_shared_experts": null})"), 2U);
  EXPECT_EQ(n_shared(R"({"model_type": "ernie4_5_moe", "moe_num_shared_experts": 0})"), 0U);
  EXPECT_EQ(n_shared(R"({"model_type": "solar_open", "n_shared_experts": 3})"), 3U);
  EXPECT_EQ(n_shared(R"({"model_type": "mine"})"), 0U);
}

TEST(ModelConfig, FamiliesSpellKeysTheirWay) {
  const ModelConfig ernie =
      parse(R"({"num_layers": 4, "moe_num_experts": 6, "moe_k": 3, "ffn_hidden_size": 88,
                "moe_num_shared_experts": 2, "moe_intermediate_size": 32,
                "moe_layer_start_index": 1, "moe_layer_end_index": 2})");
  EXPECT_EQ(ernie.num_hidden_layers, 4U);
  EXPECT_EQ(ernie.n_routed_experts, 6U);
  EXPECT_EQ(ernie.num_experts_per_tok, 3U);
  EXPECT_EQ(ernie.intermediate_size, 88U);
  EXPECT_EQ(ernie.shared_intermediate_size, 64U);
  EXPECT_THAT(ernie.layer_is_moe, ElementsAre(false, true, true, false));
  EXPECT_THAT(
      parse(R"({"num_hidden_layers": 3, "num_experts": 2, "moe_layers_enum": "0,2"})").layer_is_moe,
      ElementsAre(true, false, true));
  EXPECT_THAT(parse(R"({"num_hidden_layers": 3, "num_experts": 2,
                        "hybrid_override_pattern": "ME*"})")
                  .layer_is_moe,
              ElementsAre(false, true, false));
  EXPECT_THAT(parse(R"({"num_hidden_layers": 4, "layer_group_size": 3})").layer_is_linear,
              ElementsAre(true, true, false, false));
  expect_error(ErrorCode::kCorrupt, {"'moe_layers_enum' is no list"}, [] {
    parse(R"({"num_hidden_layers": 3, "num_experts": 2, "moe_layers_enum": "0,x"})");
  });
}

TEST(ModelConfig, NumbersMayBeWrittenOncePerLayer) {
  const ModelConfig config = parse(R"({"num_hidden_layers": 2, "moe_intermediate_size": [48, 48],
                                       "rope_theta": [5.0, 6.0]})");
  EXPECT_EQ(config.moe_intermediate_size, 48U);
  EXPECT_EQ(config.rope.theta, 5.0);
  EXPECT_TRUE(config.by_layer.empty());
}

TEST(ModelConfig, NumbersMayDifferBetweenLayers) {
  const ModelConfig config = parse(R"({"num_hidden_layers": 3, "num_experts": 4,
      "moe_intermediate_size": [48, 64, 16], "num_shared_expert": [1, 2, 0],
      "moe_topk": [2, 2, 1], "num_attention_heads": [8, 4, 4]})");
  EXPECT_EQ(config.moe_intermediate_size, 64U) << "the largest";
  EXPECT_EQ(config.shared_intermediate_size, 128U);
  const auto layers = [&](const char* name) { return config.by_layer.at(name); };
  EXPECT_THAT(layers("moe_intermediate_size"), ElementsAre(48, 64, 16));
  EXPECT_THAT(layers("n_shared_experts"), ElementsAre(1, 2, 0));
  EXPECT_THAT(layers("shared_intermediate_size"), ElementsAre(48, 128, 0));
  EXPECT_THAT(layers("num_experts_per_tok"), ElementsAre(2, 2, 1));
  EXPECT_THAT(layers("num_key_value_heads"), ElementsAre(8, 4, 4));
  const ModelConfig llama = parse(R"({"num_hidden_layers": 2, "num_local_experts": 2,
      "intermediate_size": [16, 24], "intermediate_size_mlp": 32})");
  EXPECT_THAT(llama.by_layer.at("moe_intermediate_size"), ElementsAre(16, 24));
  EXPECT_EQ(llama.intermediate_size, 32U);
  const ModelConfig uneven = parse(R"({"num_hidden_layers": 2, "num_experts": [4, 8]})");
  EXPECT_EQ(uneven.n_routed_experts, 8U);
  EXPECT_THAT(uneven.by_layer.at("n_routed_experts"), ElementsAre(4, 8));
  expect_error(ErrorCode::kCorrupt, {"'first_k_dense_replace' differs between layers"}, [] {
    parse(R"({"num_hidden_layers": 2, "num_experts": 2, "first_k_dense_replace": [1, 2]})");
  });
  expect_error(ErrorCode::kCorrupt, {"'moe_intermediate_size'"},
               [] { parse(R"({"num_hidden_layers": 2, "moe_intermediate_size": [48, "x"]})"); });
}

TEST(ModelConfig, ExpertsOfLlama4HaveTheShortName) {
  const ModelConfig config = parse(
      R"({"num_hidden_layers": 4, "num_local_experts": 2, "interleave_moe_layer_step": 2,
          "intermediate_size": 16, "intermediate_size_mlp": 32})");
  EXPECT_EQ(config.moe_intermediate_size, 16U);
  EXPECT_EQ(config.intermediate_size, 32U);
  EXPECT_THAT(config.layer_is_moe, ElementsAre(false, true, false, true));
}

TEST(ModelConfig, TakesMixturesOfLlama4FromTheirList) {
  const ModelConfig config = parse(
      R"({"num_hidden_layers": 4, "num_local_experts": 2, "interleave_moe_layer_step": 1,
          "moe_layers": [0, 3]})");
  EXPECT_THAT(config.layer_is_moe, ElementsAre(true, false, false, true));
}

TEST(ModelConfig, TakesTheEpsilonOfNormsInEverySpelling) {
  for (const char* key :
       {"rms_norm_eps", "layer_norm_epsilon", "layernorm_epsilon", "norm_eps", "layer_norm_eps"}) {
    EXPECT_EQ(parse(fmt::format(R"({{"{}": 0.25}})", key)).rms_norm_eps, 0.25) << key;
  }
}

TEST(ModelConfig, KeepsWhatItDoesNotUnderstand) {
  const char* text = R"({"zeta":[1,{"x":-2.5}],"hidden_size":8,"auto_map":{"A":"b.C"}})";
  EXPECT_EQ(parse(text).raw->dump(), text);
}

/// Every number that must be whole: counts up to 2^20, dimensions up to 2^32.
const std::vector<std::string> kCounts = {
    "num_hidden_layers", "num_nextn_predict_layers", "n_routed_experts",   "num_experts",
    "num_local_experts", "n_shared_experts",         "num_experts_per_tok"};
const std::vector<std::string> kDimensions = {
    "vocab_size",          "hidden_size",         "intermediate_size", "moe_intermediate_size",
    "num_attention_heads", "num_key_value_heads", "head_dim",          "q_lora_rank",
    "kv_lora_rank",        "qk_nope_head_dim",    "qk_rope_head_dim",  "v_head_dim",
    "index_n_heads",       "index_head_dim",      "index_topk",        "max_position_embeddings"};

void expect_whole(const std::string& key, std::uint64_t max) {
  const auto with = [&](const std::string& value) {
    return fmt::format(R"({{"{}": {}}})", key, value);
  };
  SCOPED_TRACE(key);
  EXPECT_NO_THROW(parse(with(std::to_string(max))));
  const std::pair<std::string, std::string> bad[] = {
      {std::to_string(max + 1), "plausible"},
      {"18446744073709551615", "plausible"},
      {"-1", "less than 0"},
      {"1.5", "not a whole number"},
      {"2.0", "not a whole number"},
      {"1e3", "not a whole number"},
      {"\"8\"", "is a string"},
      {"true", "is a boolean"},
      {"[8]", "is an array"},
      {"{}", "is an object"},
  };
  for (const auto& refused : bad) {
    expect_error(ErrorCode::kCorrupt, {"config.json: ", fmt::format("'{}'", key), refused.second},
                 [&] { parse(with(refused.first)); });
  }
  expect_error(ErrorCode::kCorrupt, {"config.json: ", "64 bits"},
               [&] { parse(with("18446744073709551616")); });
}

TEST(ModelConfig, WholeNumbersAreCheckedKeyByKey) {
  for (const std::string& key : kCounts) expect_whole(key, std::uint64_t{1} << 20);
  for (const std::string& key : kDimensions) expect_whole(key, std::uint64_t{1} << 32);
}

TEST(ModelConfig, RefusesWrongTypesAndValuesNamingTheKey) {
  const struct {
    const char* text;
    const char* fragment;
  } cases[] = {
      {"[]", "is not a JSON object"},
      {"null", "is not a JSON object"},
      {"\"text\"", "is not a JSON object"},
      {R"({"model_type": 1})", "'model_type' is 1, not a string"},
      {R"({"model_type": ["deepseek_v3"]})", "'model_type'"},
      {R"({"architectures": "DeepseekV3ForCausalLM"})", "'architectures'"},
      {R"({"architectures": [1]})", "'architectures'"},
      {R"({"torch_dtype": 16})", "'torch_dtype'"},
      {R"({"dtype": {}})", "'dtype'"},
      {R"({"topk_method": false})", "'topk_method'"},
      {R"({"scoring_func": 0})", "'scoring_func'"},
      {R"({"rms_norm_eps": "1e-6"})", "'rms_norm_eps'"},
      {R"({"rms_norm_eps": -1e-6})", "'rms_norm_eps' is -1e-06, less than 0"},
      {R"({"tie_word_embeddings": 1})", "'tie_word_embeddings'"},
      {R"({"attention_bias": "false"})", "'attention_bias'"},
      {R"({"rope_theta": "10000"})", "'rope_theta'"},
      {R"({"rope_theta": 0})", "'rope_theta' is 0"},
      {R"({"rope_theta": -1})", "'rope_theta'"},
      {R"({"rope_scaling": "yarn"})", "'rope_scaling' is not an object"},
      {R"({"rope_scaling": []})", "'rope_scaling' is not an object"},
      {R"({"rope_scaling": {"type": 1}})", "'rope_scaling.type'"},
      {R"({"rope_scaling": {"factor": "40"}})", "'rope_scaling.factor'"},
      {R"({"rope_scaling": {"original_max_position_embeddings": 4096.0}})",
       "'rope_scaling.original_max_position_embeddings'"},
      {R"({"rope_parameters": {"rope_theta": []}})", "'rope_parameters.rope_theta'"},
      {R"({"rope_parameters": {"rope_type": {}}})", "'rope_parameters.rope_type'"},
      {R"({"rope_parameters": {"mscale_all_dim": true}})", "'rope_parameters.mscale_all_dim'"},
      {R"({"quantization_config": "fp8"})", "'quantization_config' is not an object"},
      {R"({"quantization_config": {"quant_method": 8}})", "'quantization_config.quant_method'"},
      {R"({"quantization_config": {"scale_fmt": 1}})", "'quantization_config.scale_fmt'"},
      {R"({"quantization_config": {"weight_block_size": 128}})",
       "'quantization_config.weight_block_size'"},
      {R"({"quantization_config": {"weight_block_size": [128]}})", "does not hold two numbers"},
      {R"({"quantization_config": {"weight_block_size": [128,128,128]}})",
       "does not hold two numbers"},
      {R"({"quantization_config": {"weight_block_size": [128,0]}})", "holds a 0"},
      {R"({"quantization_config": {"weight_block_size": [128,-1]}})", "less than 0"},
      {R"({"quantization_config": {"weight_block_size": [128,1.5]}})", "not a whole number"},
      {R"({"quantization_config": {"weight_block_size": ["128","128"]}})", "not a whole number"},
      {R"({"num_hidden_layers": 2, "mlp_layer_types": ["dense"]})",
       "'mlp_layer_types' holds 1 entries"},
      {R"({"num_hidden_layers": 1, "mlp_layer_types": ["dense","dense"]})",
       "'mlp_layer_types' holds 2 entries"},
      {R"({"num_hidden_layers": 1, "mlp_layer_types": ["moe"]})", "neither dense nor sparse"},
      {R"({"num_hidden_layers": 1, "mlp_layer_types": [1]})", "neither dense nor sparse"},
      {R"({"num_hidden_layers": 1, "mlp_layer_types": "dense"})", "'mlp_layer_types'"},
      {R"({"num_hidden_layers": 1, "num_experts": 1, "first_k_dense_replace": -1})",
       "'first_k_dense_replace'"},
      {R"({"num_hidden_layers": 1, "num_experts": 1, "moe_layer_freq": 0})",
       "'moe_layer_freq' is 0"},
      {R"({"num_hidden_layers": 1, "num_experts": 1, "moe_layer_freq": [2]})",
       "'moe_layer_freq' is 2"},
      {R"({"num_hidden_layers": 1, "num_experts": 1, "moe_layer_freq": [1,1]})",
       "'moe_layer_freq' holds 2"},
      {R"({"num_hidden_layers": 1, "num_experts": 1, "moe_layer_freq": "1"})", "'moe_layer_freq'"},
      {R"({"num_hidden_layers": 1, "num_experts": 1, "decoder_sparse_step": 0})",
       "'decoder_sparse_step' is 0"},
      {R"({"num_hidden_layers": 1, "num_experts": 1, "mlp_only_layers": [1]})", "names layer 1"},
      {R"({"num_hidden_layers": 1, "num_experts": 1, "mlp_only_layers": 0})", "'mlp_only_layers'"},
      {R"({"num_hidden_layers": 1, "num_experts": 1, "mlp_only_layers": ["0"]})",
       "'mlp_only_layers'"},
      {R"({"hidden_size": 8, "hidden_size": 8})", "'hidden_size' occurs twice"},
      {R"({"rope_theta": 1e999})", "JSON"},
  };
  for (const auto& row : cases) {
    SCOPED_TRACE(row.text);
    expect_error(ErrorCode::kCorrupt, {"config.json: ", row.fragment}, [&] { parse(row.text); });
  }
}

/// The numbers of tests/golden/forward/qwen4_exp, whose constants transformers has stored.
Json small(const Json& changes = Json::object()) {
  Json keys = {{"vocab_size", 118},      {"ngram_size", 3},
               {"heads_per_ngram", 2},   {"ngram_vocab_size_base", 41},
               {"seed", 1234},           {"make_ngram_vocab_size_divisible_by", 8},
               {"ple_layer_ids", {3, 1}}};
  keys.update(changes);
  return keys;
}

TEST(NgramTable, HasTheConstantsThatTransformersStores) {
  const auto first = ngram_table(small(), 0), second = ngram_table(small(), 2);
  ASSERT_TRUE(first && second);
  EXPECT_THAT(first->sizes, ElementsAre(41, 43, 47, 53));
  EXPECT_EQ(first->rows, 4U * 46);
  EXPECT_THAT(first->multipliers,
              ElementsAre(65971574125615001U, 31790671197662853U, 40658331651656551U));
  EXPECT_THAT(second->sizes, ElementsAre(59, 61, 67, 71));
  EXPECT_EQ(second->rows, 4U * 66);
  EXPECT_THAT(second->multipliers,
              ElementsAre(30061554774864669U, 67349471840597459U, 40433125953952745U));
}

TEST(NgramTable, IsAsLargeAsThatOfTheRelease) {
  const auto table = ngram_table(small({{"heads_per_ngram", 8},
                                        {"ngram_vocab_size_base", 20'000'000},
                                        {"make_ngram_vocab_size_divisible_by", 128},
                                        {"ple_layer_ids", {2}}}),
                                 1);
  ASSERT_TRUE(table);
  EXPECT_EQ(table->sizes.size(), 16U);
  EXPECT_EQ(table->rows, 320'001'536U);
}

TEST(NgramTable, IsOnlyInListedLayers) {
  EXPECT_FALSE(ngram_table(small(), 1));
  EXPECT_FALSE(ngram_table(small({{"ple_layer_ids", nullptr}}), 0));
  EXPECT_FALSE(ngram_table(small({{"heads_per_ngram", 0}}), 0));
  EXPECT_FALSE(ngram_table(small({{"ngram_size", 1}}), 0));
}

TEST(NgramTable, RefusesConfigsOfNoModel) {
  using ingot::testing::expect_error;
  expect_error(ErrorCode::kLimit, {"2048 heads of n-grams"}, [] {
    (void)ngram_table(small({{"heads_per_ngram", 1024}}), 0);
  });
  expect_error(ErrorCode::kCorrupt, {"ngram_vocab_size_base"}, [] {
    (void)ngram_table(small({{"ngram_vocab_size_base", 1ULL << 40}}), 0);
  });
  expect_error(ErrorCode::kCorrupt, {"ple_layer_ids"}, [] {
    (void)ngram_table(small({{"ple_layer_ids", "2"}}), 0);
  });
}

}  // namespace
}  // namespace ingot::formats
