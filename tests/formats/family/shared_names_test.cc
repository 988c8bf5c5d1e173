#include <filesystem>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "formats/family/families.h"
#include "formats/family/family.h"
#include "formats/family/family_yaml.h"
#include "formats/json/json.h"

// Names in config.json that several models have: which family is meant.

namespace ingot::formats {
namespace {

// Ling 2.5 and 3 share a model_type.
TEST(SharedNames, FollowTheArchitecture) {
  const auto family = [](const std::string& architectures) {
    return family_of(parse_model_config(R"({"model_type": "bailing_hybrid")" + architectures + "}",
                                        "config.json"));
  };
  EXPECT_EQ(family(R"(, "architectures": ["BailingMoeV3ForCausalLM"])"),
            find_family("bailing_hybrid"));
  EXPECT_EQ(family(R"(, "architectures": ["BailingHybridForCausalLM"])"),
            find_family("bailing_hybrid"));
  EXPECT_EQ(family(""), find_family("bailing_hybrid"));
  EXPECT_EQ(family(R"(, "architectures": ["BailingMoeV2_5ForCausalLM"])"), nullptr);
}

TEST(SharedNames, V4IsKnownUnderTheNameOfItsOwnCode) {
  const auto family = [](const std::string& config) {
    return family_of(parse_model_config(config, "config.json"));
  };
  EXPECT_EQ(family(R"({"model_type": "deepseek_ref", "architectures": ["DeepseekV4ForCausalLM"]})"),
            find_family("deepseek_v4"));
  EXPECT_EQ(family(R"({"model_type": "deepseek_ref", "architectures": ["OtherForCausalLM"]})"),
            nullptr);
  EXPECT_EQ(family(R"({"model_type": "deepseek_v4", "architectures": ["OtherForCausalLM"]})"),
            find_family("deepseek_v4"));
}

// The config of DeepSeek-OCR-2, as far as it describes the model.
constexpr const char* kOcr = R"({"model_type": "deepseek_vl_v2",
  "architectures": ["DeepseekOCR2ForCausalLM"],
  "language_config": {"architectures": ["DeepseekV2ForCausalLM"], "first_k_dense_replace": 1,
    "hidden_size": 1280, "intermediate_size": 6848, "kv_lora_rank": null,
    "moe_intermediate_size": 896, "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2,
    "num_attention_heads": 10, "num_experts_per_tok": 6, "num_hidden_layers": 12,
    "num_key_value_heads": 10, "q_lora_rank": null, "qk_nope_head_dim": 0, "qk_rope_head_dim": 0,
    "topk_method": "greedy", "use_mla": false, "v_head_dim": 0, "vocab_size": 129280}})";

TEST(SharedNames, V2WithoutLatentAttentionIsAnother) {
  const ModelConfig config = parse_model_config(kOcr, "config.json");
  const Family* family = family_of(config);
  ASSERT_NE(family, nullptr);
  EXPECT_EQ(family->name, "deepseek_v2_mha");
  EXPECT_NO_THROW(require_widths(*family, config));
  const NameGrammar grammar(*family, config);
  for (const char* projection : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
    const auto match =
        grammar.match(fmt::format("model.layers.11.self_attn.{}.weight", projection));
    ASSERT_TRUE(match) << projection;
    EXPECT_EQ(rule_shape(*match->rule, config, 11), (Shape{1280, 1280}));
  }
  EXPECT_FALSE(grammar.match("model.layers.1.self_attn.kv_b_proj.weight"));
  for (const char* tower : {"model.sam_model.pos_embed", "model.view_seperator",
                            "model.qwen2_model.model.model.layers.3.mlp.up_proj.weight",
                            "model.projector.layers.weight"})
    EXPECT_EQ(grammar.match(tower)->rule->role, Role::kOtherModality) << tower;
  // A config that does not mention latent attention has it.
  Json keys = Json::parse(R"({"model_type": "deepseek_v2"})");
  EXPECT_EQ(family_of(parse_model_config(keys.dump(), "config.json")), find_family("deepseek_v2"));
}

// The first release of Hunyuan A13B, and the wrapper of Kimi-K2.5 around deepseek_v3.
TEST(FamilyOf, KnowsWhatReleasesCallThemselves) {
  ModelConfig config;
  config.model_type = "hunyuan";
  EXPECT_EQ(family_of(config), find_family("hunyuan_v1_moe"));
  config.model_type = "kimi_k25";
  config.text.model_type = "deepseek_v3";
  EXPECT_EQ(family_of(config), find_family("kimi_k2"));
}

TEST(FamilyRows, AbsentKeysMeanWhatTheirClassMeans) {
  const Json classes = read_json_file(
      std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden/class_defaults.json", 1 << 20);
  EXPECT_GT(classes.size(), 30U);
  for (const auto& [name, keys] : classes.items()) {
    const Family& family = *find_family(name);
    const std::string text = fmt::format(R"({{"model_type": "{}"}})", name);
    const ModelConfig config = config_of(family, parse_model_config(text, "config.json"));
    for (const auto& [key, value] : keys.items())
      EXPECT_EQ(config_value(config, key), value) << name << " " << key;
  }
}

TEST(FamilyRows, AbsentListsMeanWhatTheirClassMeans) {
  const Json classes = read_json_file(
      std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden/class_lists.json", 1 << 20);
  EXPECT_GT(classes.size(), 8U);
  for (const auto& [name, lists] : classes.items()) {
    const Family& family = *find_family(name);
    Json keys = {{"model_type", name}, {"num_hidden_layers", 6}, {"n_routed_experts", 1}};
    const auto names = [&] {
      std::vector<std::string> all;
      const ModelConfig config = config_of(family, parse_model_config(keys.dump(), "config.json"));
      for_each_expected(family, config, false,
                        [&](const ExpectedTensor& tensor) { all.push_back(tensor.name); });
      return all;
    };
    const std::vector<std::string> absent = names();
    EXPECT_GT(absent.size(), 6U);
    for (const auto& [key, list] : lists.items()) keys[key] = list;
    EXPECT_EQ(absent, names()) << name;
  }
}

// Its loaders take the first entries, those of the heads.
TEST(FamilyRows, KimiK3StoresRatesAsLongAsAHead) {
  const Family& family = *find_family("kimi_k3");
  const ModelConfig config = parse_model_config(
      R"({"model_type": "kimi_k3", "text_config": {"model_type": "kimi_linear", "hidden_size": 64,
          "num_hidden_layers": 2, "num_attention_heads": 6, "v_head_dim": 8, "linear_attn_config":
          {"num_heads": 6, "head_dim": 16, "kda_layers": [1], "full_attn_layers": [2]}}})",
      "config.json");
  const NameGrammar grammar(family, config);
  const auto rates = grammar.match("model.layers.0.self_attn.A_log");
  ASSERT_TRUE(rates);
  EXPECT_EQ(rule_shape(*rates->rule, config, 0), (Shape{16}));
  const auto gate = grammar.match("model.layers.1.self_attn.g_proj.weight");
  ASSERT_TRUE(gate);
  EXPECT_EQ(rule_shape(*gate->rule, config, 1), (Shape{48, 64}));
}

TEST(FamilyRows, HunyuanHasTwoWidthsOfExperts) {
  ModelConfig config = parse_model_config(
      R"({"model_type": "hunyuan", "num_hidden_layers": 2, "hidden_size": 64, "num_experts": 4,
          "intermediate_size": 96, "moe_intermediate_size": [32, 48], "num_shared_expert": [1, 2],
          "num_attention_heads": 4, "attention_head_dim": 8, "vocab_size": 8})",
      "config.json");
  const Family& family = *family_of(config);
  config = config_of(family, config);
  const NameGrammar grammar(family, config);
  const auto shape = [&](const std::string& name) {
    const auto match = grammar.match(name);
    EXPECT_TRUE(match) << name;
    return match ? rule_shape(*match->rule, config, match->layer) : Shape{};
  };
  EXPECT_EQ(shape("model.layers.0.mlp.experts.3.up_proj.weight"), (Shape{32, 64}));
  EXPECT_EQ(shape("model.layers.1.mlp.experts.3.up_proj.weight"), (Shape{48, 64}));
  EXPECT_EQ(shape("model.layers.0.mlp.shared_mlp.up_proj.weight"), (Shape{96, 64}));
  EXPECT_EQ(shape("model.layers.1.mlp.shared_mlp.down_proj.weight"), (Shape{64, 192}));
  EXPECT_EQ(shape("model.layers.1.self_attn.q_proj.weight"), (Shape{32, 64}));
}

}  // namespace
}  // namespace ingot::formats
