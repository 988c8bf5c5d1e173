#include "formats/records/native_names.h"

#include "formats/base/fd.h"
#include "formats/config/native_config.h"
#include "formats/family/families.h"
#include "formats/family/family.h"
#include "formats/json/json.h"
#include "tests/support/listed.h"
#include "tests/support/test.h"

namespace ingot::formats {
namespace {

using Names = std::set<std::string>;
using ingot::testing::expect_error;
using ingot::testing::listed;

ModelConfig bundled_config() {
  constexpr const char* kPath = INGOT_SOURCE_DIR "/examples/tiny-v32/config.json";
  return parse_model_config(read_text_file(kPath, 1 << 20), kPath);
}

ModelConfig reference(std::string_view family) {
  return parse_model_config(find_family(family)->reference_config, "reference");
}

Names names_in(const std::string& file) {
  std::istringstream lines(
      read_text_file(INGOT_SOURCE_DIR "/tests/golden/tiny-v32/" + file, 1 << 20));
  Names names;
  for (std::string line; std::getline(lines, line);) names.insert(line);
  return names;
}

/// Every stored tensor that the config promises; with the scales of an FP8 release.
void for_each_stored(const ModelConfig& config, bool is_fp8,
                     const std::function<void(const std::string&, bool is_mtp)>& visit) {
  for_each_expected(*family_of(config), config, false, [&](const ExpectedTensor& tensor) {
    const bool is_mtp = tensor.layer && *tensor.layer >= config.num_hidden_layers;
    visit(tensor.name, is_mtp);
    if (is_fp8 && tensor.rule->fp8_by_default) visit(tensor.name + "_scale_inv", is_mtp);
  });
}

Names native_main_names(const ModelConfig& config, bool is_fp8) {
  Names names;
  for_each_stored(config, is_fp8, [&](const std::string& name, bool is_mtp) {
    if (is_mtp) return;
    const auto native = native_name(name, config);
    ASSERT_TRUE(native) << name;
    EXPECT_TRUE(names.insert(*native).second) << name << " and another became " << *native;
  });
  return names;
}

void replace_all(std::string& text, std::string_view old_text, std::string_view new_text) {
  for (std::size_t at = text.find(old_text); at != std::string::npos;
       at = text.find(old_text, at + new_text.size())) {
    text.replace(at, old_text.size(), new_text);
  }
}

/// Words of a text, two by two.
std::map<std::string, std::string> pairs_of(const std::string& text) {
  std::istringstream words(text);
  std::map<std::string, std::string> pairs;
  for (std::string from, to; words >> from >> to;) pairs[from] = to;
  return pairs;
}

/// DeepSeek's rules as docs and converter have them: replacements anywhere in the text.
std::string by_replacement(std::string name) {
  static const std::map<std::string, std::string> kKeys = pairs_of(
      "embed_tokens embed input_layernorm attn_norm q_proj wq post_attention_layernorm ffn_norm "
      "q_a_proj wq_a q_a_layernorm q_norm q_b_proj wq_b kv_a_proj_with_mqa wkv_a kv_a_layernorm "
      "kv_norm kv_b_proj wkv_b o_proj wo gate gate gate_proj w1 down_proj w2 up_proj w3 norm norm "
      "lm_head head scale scale wq_b wq_b wk wk k_norm k_norm weights_proj weights_proj");
  if (name.starts_with("model.")) name.erase(0, 6);
  replace_all(name, "self_attn", "attn");
  replace_all(name, "mlp", "ffn");
  replace_all(name, "weight_scale_inv", "scale");
  replace_all(name, "e_score_correction_bias", "bias");
  const std::size_t last = name.rfind('.');
  const std::size_t before = name.rfind('.', last - 1);
  const std::size_t begin = before == std::string::npos ? 0 : before + 1;
  const std::string key = name.substr(begin, last - begin);
  replace_all(name, key, kKeys.at(key));
  return name;
}

TEST(NativeNames, AreThoseThatDeepseeksConverterWroteFromBf16) {
  EXPECT_EQ(native_main_names(bundled_config(), false), names_in("deepseek_bf16_names.txt"));
}

TEST(NativeNames, AreThoseThatDeepseeksConverterWroteFromFp8) {
  EXPECT_EQ(native_main_names(bundled_config(), true), names_in("deepseek_fp8_names.txt"));
}

class NativeNamesOfFamily : public ::testing::TestWithParam<const char*> {};

TEST_P(NativeNamesOfFamily, EqualTheTextualReplacementsInEveryMainLayer) {
  const ModelConfig config = reference(GetParam());
  std::size_t n_names = 0;
  for_each_stored(config, true, [&](const std::string& name, bool is_mtp) {
    if (is_mtp) return;
    ++n_names;
    ASSERT_EQ(native_name(name, config), by_replacement(name)) << name;
  });
  EXPECT_GT(n_names, 5000U);
}

TEST_P(NativeNamesOfFamily, AreInvertibleAndDistinct) {
  const ModelConfig config = reference(GetParam());
  Names natives;
  for_each_stored(config, true, [&](const std::string& name, bool) {
    const auto native = native_name(name, config);
    ASSERT_TRUE(native) << name;
    ASSERT_TRUE(natives.insert(*native).second) << name;
    ASSERT_EQ(hub_name(*native, config), name);
  });
}

// The reference config of deepseek_v2 is V2-Lite, without low-rank queries.
TEST(NativeNames, NameThePlainQueriesOfV2) {
  const ModelConfig config = reference("deepseek_v2");
  EXPECT_EQ(native_name("model.layers.3.self_attn.q_proj.weight", config),
            "layers.3.attn.wq.weight");
  EXPECT_EQ(hub_name("layers.3.attn.wq.scale", config),
            "model.layers.3.self_attn.q_proj.weight_scale_inv");
}

INSTANTIATE_TEST_SUITE_P(Families, NativeNamesOfFamily,
                         ::testing::Values("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2"),
                         [](const auto& instance) { return std::string(instance.param); });

TEST(NativeNames, GiveTheMtpLayerNamesOfItsOwn) {
  const ModelConfig config = reference("deepseek_v3");
  const std::map<std::string, std::string> pairs = pairs_of(
      "embed_tokens.weight embed.weight enorm.weight enorm.weight hnorm.weight hnorm.weight "
      "eh_proj.weight eh_proj.weight shared_head.norm.weight shared_head.norm.weight "
      "shared_head.head.weight shared_head.head.weight self_attn.o_proj.weight_scale_inv "
      "attn.wo.scale mlp.gate.e_score_correction_bias ffn.gate.bias "
      "mlp.experts.255.down_proj.weight ffn.experts.255.w2.weight");
  for (const auto& [hub, native] : pairs) {
    EXPECT_EQ(native_name("model.layers.61." + hub, config), "layers.61." + native);
    EXPECT_EQ(hub_name("layers.61." + native, config), "model.layers.61." + hub);
  }
}

TEST(NativeNames, AreAbsentForUnknownTensors) {
  const ModelConfig config = bundled_config();  // layer 0 is dense, 5 is MTP, 16 experts
  const std::vector<std::string> unknown =
      listed(R"(; model; norm.weight; model.norm; model.lm_head.weight; lm_head.bias;
      lm_head.weight_scale_inv; model.layers.0.self_attn.rotary_emb.inv_freq;
      model.layers.0.self_attn.o_proj.bias; model.layers.0.self_attn.o_proj.weight_scale;
      model.layers.0.mlp.gate.weight; model.layers.1.mlp.gate.bias;
      model.layers.1.mlp.gate_proj.weight; model.layers.1.mlp.experts.gate_up_proj;
      model.layers.1.mlp.experts.16.up_proj.weight;
      model.layers.1.mlp.experts.01.up_proj.weight;
      model.layers.1.mlp.experts.{expert}.up_proj.weight;
      model.layers.01.input_layernorm.weight; model.layers.6.input_layernorm.weight;
      model.layers.4294967296.input_layernorm.weight; model.layers.-1.input_layernorm.weight;
      model.layers.1; model.layers.; model.layers.4.embed_tokens.weight;
      layers.1.input_layernorm.weight)");
  for (const std::string& name : unknown) {
    EXPECT_EQ(native_name(name, config), std::nullopt) << name;
  }
  for (const char* name :
       {"", "head", "head.scale", "lm_head.weight", "model.norm.weight", "layers.1.ffn.w1.weight",
        "layers.1.ffn.gate.e_score_correction_bias", "layers.1.attn.wo.weight_scale_inv",
        "layers.4.embed.weight", "layers.1.ffn.experts.16.w1.weight", "layers.1.ffn.gate.scale",
        "layers.9.attn_norm.weight"}) {
    EXPECT_EQ(hub_name(name, config), std::nullopt) << name;
  }
}

TEST(NativeNames, BelongToTheFamiliesOfDeepseeksCodeOnly) {
  for (const Family* family : families()) {
    if (family->reference_config.empty()) continue;
    const ModelConfig config = parse_model_config(family->reference_config, "reference");
    const bool expected = family->name == "deepseek_v2" || family->name == "deepseek_v3" ||
                          family->name == "deepseek_v32" || family->name == "kimi_k2";
    EXPECT_EQ(native_name("model.norm.weight", config).has_value(), expected) << family->name;
    EXPECT_EQ(hub_name("norm.weight", config).has_value(), expected) << family->name;
  }
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

// DeepSeek's config_671B.json, and the defaults of its ModelArgs for the keys that this file leaves
// out.
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
