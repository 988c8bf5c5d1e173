#include "formats/family/family.h"

#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "formats/family/families.h"
#include "formats/json/json.h"
#include "formats/storage/encoding.h"
#include "tests/formats/config/changed_config.h"
#include "tests/support/expect_error.h"

namespace ingot::formats {
namespace {

using namespace ingot::testing;

std::string instantiate(std::string_view pattern, std::uint32_t layer, std::uint32_t expert) {
  std::string name(pattern);
  for (const auto& [mark, number] :
       {std::pair<std::string, std::uint32_t>{"{layer}", layer}, {"{expert}", expert}}) {
    if (const std::size_t at = name.find(mark); at != std::string::npos) {
      name.replace(at, mark.size(), std::to_string(number));
    }
  }
  return name;
}

/// Layer numbers in which a scope occurs, by the reference config.
std::uint32_t layer_of(Scope scope, const ModelConfig& config) {
  switch (scope) {
    case Scope::kMtpLayer:
      return static_cast<std::uint32_t>(config.num_hidden_layers);
    case Scope::kMoeLayer:
      return static_cast<std::uint32_t>(config.num_hidden_layers - 1);
    default:
      return 0;
  }
}

struct Totals {
  std::uint64_t logical = 0, fp8 = 0, stored = 0, elements = 0, scale_elements = 0, bytes = 0;
};

/// The sizes of a release in FP8: scales in F32, the rest in the row's dtype.
Totals released_totals(const Family& family, const ModelConfig& config) {
  Totals totals;
  for_each_expected(family, config, false, [&](const ExpectedTensor& tensor) {
    const Shape shape = rule_shape(*tensor.rule, config, tensor.layer);
    const std::uint64_t n = *element_count(shape);
    ++totals.logical;
    ++totals.stored;
    totals.elements += n;
    if (!tensor.rule->fp8_by_default) {
      totals.bytes += n * dtype_bits(tensor.rule->synth_dtype) / 8;
      return;
    }
    const std::uint64_t n_scales = *element_count(block_scale_shape(shape, 128, 128));
    ++totals.fp8;
    ++totals.stored;
    totals.scale_elements += n_scales;
    totals.bytes += n + 4 * n_scales;
  });
  return totals;
}

TEST(Families, HaveDistinctNamesAndModelTypes) {
  const std::set<std::string_view> with_config = {"deepseek_v2", "deepseek_v3", "deepseek_v32",
                                                  "glm_moe_dsa", "kimi_k2",     "qwen3_moe"};
  std::set<std::string_view> names, types;
  for (const Family* family : families()) {
    EXPECT_TRUE(names.insert(family->name).second) << family->name;
    EXPECT_EQ(find_family(family->name), family);
    EXPECT_EQ(family->rules.empty(), family->name == "generic");
    EXPECT_TRUE(!with_config.contains(family->name) || !family->reference_config.empty());
    for (const std::string_view type : family->model_types)
      EXPECT_TRUE(types.insert(type).second) << type;
  }
  EXPECT_EQ(find_family("lama"), nullptr);
  ASSERT_EQ(family_entries().size(), families().size());
  for (std::size_t i = 0; i < families().size(); ++i) {
    const FamilyEntry& entry = family_entries()[i];
    EXPECT_EQ(entry.name, families()[i]->name);
    EXPECT_EQ(entry.summary, families()[i]->summary);
    EXPECT_EQ(entry.can_be_synthesized, !families()[i]->reference_config.empty());
    EXPECT_TRUE(std::ranges::equal(model_types_of(entry), families()[i]->model_types));
  }
}

TEST(Families, AreFoundByTheirReferenceConfig) {
  for (const Family* family : families()) {
    if (family->reference_config.empty()) continue;
    const ModelConfig config = reference(*family);
    EXPECT_EQ(family_of(config), family) << family->name;
    EXPECT_EQ(config.architecture, family->architecture);
    EXPECT_NO_THROW(require_widths(*family, config)) << family->name;
  }
}

TEST(Roles, AreFoundByTheirNames) {
  std::set<std::string_view> names;
  for (int i = 0; i <= static_cast<int>(Role::kOther); ++i) {
    const Role role = static_cast<Role>(i);
    EXPECT_TRUE(names.insert(role_name(role)).second) << role_name(role);
    EXPECT_EQ(find_role(role_name(role)), role);
  }
  EXPECT_EQ(find_role("nothing"), std::nullopt);
}

// Every row, in whatever config allows it, recognises its own name, and no other row has that name.
TEST(Grammar, EveryRowMatchesItsOwnName) {
  for (const Family* family : families()) {
    if (family->reference_config.empty()) continue;
    std::set<std::string_view> patterns;
    for (const TensorRule& rule : family->rules) {
      EXPECT_TRUE(patterns.insert(rule.pattern).second)
          << family->name << ": " << rule.pattern << " stands twice";
      Json keys = Json::object();
      if (rule.scope == Scope::kMtpLayer) keys["num_nextn_predict_layers"] = 1;
      if (rule.presence == Presence::kWhen) keys[rule.condition->text()] = 16;
      if (rule.presence == Presence::kUnless) keys[rule.condition->text()] = nullptr;
      if (rule.scope == Scope::kDenseLayer && family->name == "qwen3_moe")
        keys["mlp_only_layers"] = {0};
      const ModelConfig config = changed(*family, keys);
      const std::string name = instantiate(rule.pattern, layer_of(rule.scope, config), 1);
      const auto match = NameGrammar(*family, config).match(name);
      ASSERT_TRUE(match) << family->name << ": " << name;
      EXPECT_EQ(match->rule, &rule) << name;
      EXPECT_EQ(match->layer.has_value(), rule.scope != Scope::kModel);
      EXPECT_EQ(match->expert.has_value(), rule.pattern.find("{expert}") != std::string_view::npos);
    }
  }
}

TEST(Grammar, RecognisesEveryTensorThatTheConfigPromises) {
  for (const Family* family : families()) {
    if (family->reference_config.empty()) continue;
    const ModelConfig config = reference(*family);
    const NameGrammar grammar(*family, config);
    for (const bool stacked : {false, true}) {
      std::set<std::string> names;
      std::uint64_t wrong = 0;
      for_each_expected(*family, config, stacked, [&](const ExpectedTensor& tensor) {
        const auto match = grammar.match(tensor.name);
        const bool good = match && match->rule == tensor.rule && match->layer == tensor.layer &&
                          match->expert == tensor.expert && names.insert(tensor.name).second;
        if (!good && ++wrong < 5) ADD_FAILURE() << family->name << ": " << tensor.name;
      });
      EXPECT_EQ(wrong, 0U);
    }
  }
}

TEST(Grammar, HonoursTheBoundsOfTheConfig) {
  const Family& family = family_named("deepseek_v3");
  const ModelConfig config = reference(family);
  const NameGrammar grammar(family, config);
  const auto matches = [&](const std::string& name) { return grammar.match(name).has_value(); };
  EXPECT_TRUE(matches("model.layers.61.eh_proj.weight"));
  EXPECT_FALSE(matches("model.layers.60.eh_proj.weight")) << "not an MTP layer";
  EXPECT_FALSE(matches("model.layers.62.input_layernorm.weight")) << "one layer too many";
  EXPECT_TRUE(matches("model.layers.3.mlp.experts.255.up_proj.weight"));
  EXPECT_FALSE(matches("model.layers.3.mlp.experts.256.up_proj.weight")) << "one expert too many";
  EXPECT_FALSE(matches("model.layers.2.mlp.experts.0.up_proj.weight")) << "a dense layer";
  EXPECT_TRUE(matches("model.layers.2.mlp.up_proj.weight"));
  EXPECT_FALSE(matches("model.layers.3.mlp.up_proj.weight")) << "a layer of experts";
  EXPECT_FALSE(matches("model.layers.0.self_attn.q_proj.weight"))
      << "this model has low-rank queries";
  EXPECT_FALSE(matches("model.layers.0.self_attn.indexer.wk.weight")) << "an indexer is V3.2's";
}

TEST(Grammar, RefusesNamesThatOnlyLookRight) {
  const Family& family = family_named("deepseek_v3");
  const ModelConfig config = reference(family);
  const NameGrammar grammar(family, config);
  for (const char* name :
       {"", ".", "model", "model.layers.{layer}.input_layernorm.weight",
        "model.layers.01.input_layernorm.weight", "model.layers.+1.input_layernorm.weight",
        "model.layers.-1.input_layernorm.weight", "model.layers.1 .input_layernorm.weight",
        "model.layers..input_layernorm.weight",
        "model.layers.18446744073709551617.input_layernorm.weight",
        "model.layers.4294967297.input_layernorm.weight", "model.layers.1.input_layernorm.weight.",
        "model.layers.1.input_layernorm.bias", "layers.1.input_layernorm.weight",
        "Model.layers.1.input_layernorm.weight", "model.layers.1.input_layernorm.weightx",
        "model.norm.weight.weight", "model.layers.3.mlp.experts.{expert}.up_proj.weight",
        "model.layers.3.mlp.experts.007.up_proj.weight"}) {
    EXPECT_FALSE(grammar.match(name)) << name;
  }
}

TEST(Grammar, FollowsTheKindOfLayersOfTheConfig) {
  const Family& family = family_named("qwen3_moe");
  const ModelConfig config =
      changed(family, {{"mlp_only_layers", {1}}, {"tie_word_embeddings", true}});
  const NameGrammar grammar(family, config);
  EXPECT_TRUE(grammar.match("model.layers.1.mlp.gate_proj.weight"));
  EXPECT_FALSE(grammar.match("model.layers.1.mlp.gate.weight"));
  EXPECT_FALSE(grammar.match("model.layers.0.mlp.gate_proj.weight"));
  EXPECT_TRUE(grammar.match("lm_head.weight")) << "a tied head may be stored";
  bool expects_head = false;
  for_each_expected(family, config, false,
                    [&](const ExpectedTensor& t) { expects_head |= t.name == "lm_head.weight"; });
  EXPECT_FALSE(expects_head) << "but is not missed";
}

/// The names of MTP layers as vLLM 0.32 loads them (longcat_flash_mtp, ernie_mtp, mimo_v2_mtp).
TEST(Expected, MtpLayersAreThoseThatEnginesLoad) {
  const auto names = [](const char* family, const std::string& entries) {
    const ModelConfig config = parse_model_config(
        R"({"num_hidden_layers": 2, "num_nextn_predict_layers": 1, "n_routed_experts": 2,
            "moe_layer_freq": [0, 1], "hybrid_layer_pattern": [0, 1], "q_lora_rank": 4)" +
            entries + "}",
        "config.json");
    std::set<std::string> found;
    const NameGrammar grammar(family_named(family), config);
    for_each_expected(family_named(family), config, false, [&](const ExpectedTensor& tensor) {
      const auto match = grammar.match(tensor.name);
      EXPECT_TRUE(match && match->layer == tensor.layer) << tensor.name;
      if (tensor.layer == 2U) found.insert(tensor.name);
    });
    return found;
  };
  const auto under = [](const std::string& prefix, std::initializer_list<const char*> leaves) {
    std::set<std::string> all;
    for (const char* leaf : leaves) all.insert(prefix + leaf + ".weight");
    return all;
  };
  EXPECT_EQ(names("longcat_flash", ""),
            under("model.mtp.layers.0.",
                  {"eh_proj", "enorm.m", "hnorm.m", "input_layernorm", "post_attention_layernorm",
                   "self_attn.kv_a_layernorm", "self_attn.kv_a_proj_with_mqa",
                   "self_attn.kv_b_proj", "self_attn.o_proj", "self_attn.q_a_layernorm",
                   "self_attn.q_a_proj", "self_attn.q_b_proj", "transformer_layer.mlp.down_proj",
                   "transformer_layer.mlp.gate_proj", "transformer_layer.mlp.up_proj"}));
  const ModelConfig counted = parse_model_config(
      R"({"num_hidden_layers": 2, "num_nextn_predict_layers": 1})", "config.json");
  for (const char* shared : {"model.mtp.norm.weight", "model.mtp.embed_tokens.weight"})
    EXPECT_EQ(NameGrammar(family_named("longcat_flash"), counted).match(shared)->layer, 2U);
  EXPECT_EQ(
      names("ernie4_5_moe", R"(, "moe_layer_start_index": 1)"),
      under("model.mtp_",
            {"emb_norm.0", "hidden_norm.0", "linear_proj.0", "block.0.input_layernorm",
             "block.0.post_attention_layernorm", "block.0.self_attn.q_proj",
             "block.0.self_attn.k_proj", "block.0.self_attn.v_proj", "block.0.self_attn.o_proj",
             "block.0.mlp.gate_proj", "block.0.mlp.up_proj", "block.0.mlp.down_proj"}));
  auto mimo = under("model.mtp.layers.0.",
                    {"enorm", "hnorm", "eh_proj", "input_layernorm", "pre_mlp_layernorm",
                     "final_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                     "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"});
  EXPECT_EQ(names("mimo_v2_flash", ""), mimo);
  mimo.insert("model.mtp.layers.0.self_attn.attention_sink_bias");
  EXPECT_EQ(names("mimo_v2_flash", R"(, "add_swa_attention_sink_bias": true)"), mimo);
}

TEST(Grammar, KeysThatAreMissingMeanTheirDefault) {
  struct Case {
    const char* family;
    const char* key;
    const char* tensor;
  };
  for (const Case& c : {
           Case{"hunyuan_v1_moe", "use_qk_norm", "model.layers.0.self_attn.key_layernorm.weight"},
           Case{"minimax_m2", "use_qk_norm", "model.layers.0.self_attn.q_norm.weight"},
           Case{"minimax_m2", "use_routing_bias",
                "model.layers.0.block_sparse_moe.e_score_correction_bias"},
           Case{"ernie4_5_moe", "moe_use_aux_free",
                "model.layers.0.mlp.moe_statics.e_score_correction_bias"},
           Case{"step3p7", "use_moe_router_bias", "model.layers.0.moe.router_bias"},
       }) {
    SCOPED_TRACE(fmt::format("{} {}", c.family, c.key));
    const auto is_known = [&](const std::string& entry) {
      const ModelConfig config = parse_model_config(
          R"({"num_hidden_layers": 1, "num_experts": 2, "moe_layers_enum": "0")" + entry + "}",
          "config.json");
      return NameGrammar(family_named(c.family), config).match(c.tensor).has_value();
    };
    EXPECT_TRUE(is_known(""));
    EXPECT_TRUE(is_known(fmt::format(R"(, "{}": null)", c.key)));
    EXPECT_TRUE(is_known(fmt::format(R"(, "{}": true)", c.key)));
    EXPECT_FALSE(is_known(fmt::format(R"(, "{}": false)", c.key)));
  }
}

TEST(Grammar, ForbidsSharedExpertsAbsentFromTheConfig) {
  const Family& family = family_named("deepseek_v3");
  const ModelConfig config = changed(family, {{"n_shared_experts", 0}});
  EXPECT_FALSE(
      NameGrammar(family, config).match("model.layers.3.mlp.shared_experts.up_proj.weight"));
  EXPECT_NO_THROW(require_widths(family, config));
}

TEST(Expected, DeepseeksAreTheReleasedCheckpoints) {
  struct Released {
    const char* family;
    std::uint64_t stored, fp8, elements, with_scales, bytes;
  };
  for (const Released& row :
       {Released{"deepseek_v3", 91'991, 45'808, 684'489'845'504, 684'531'386'000, 688'574'839'360},
        Released{"deepseek_v32", 92'425, 45'932, 685'355'329'792, 685'396'921'376,
                 689'471'107'200}}) {
    SCOPED_TRACE(row.family);
    const Family& family = family_named(row.family);
    const Totals totals = released_totals(family, reference(family));
    EXPECT_EQ(totals.stored, row.stored);
    EXPECT_EQ(totals.fp8, row.fp8);
    EXPECT_EQ(totals.elements, row.elements);
    EXPECT_EQ(totals.elements + totals.scale_elements, row.with_scales);
    EXPECT_EQ(totals.bytes, row.bytes);
  }
}

TEST(Expected, V32HasThePublishedNumbersPerLayer) {
  const Family& family = family_named("deepseek_v32");
  std::map<std::int64_t, std::uint64_t> stored;
  for_each_expected(family, reference(family), false, [&](const ExpectedTensor& tensor) {
    stored[tensor.layer ? static_cast<std::int64_t>(*tensor.layer) : -1] +=
        tensor.rule->fp8_by_default ? 2 : 1;
  });
  EXPECT_EQ(stored[-1], 3U);
  EXPECT_EQ(stored[0], 20U + 7U);
  EXPECT_EQ(stored[3], 1'558U + 7U);
  EXPECT_EQ(stored[61], 1'564U + 7U);
  EXPECT_EQ(stored.size(), 63U);
}

TEST(Expected, V2LiteIsTheReleasedCheckpoint) {
  const Family& family = family_named("deepseek_v2");
  const Totals totals = released_totals(family, reference(family));
  EXPECT_EQ(totals.logical, 5'291U);
  EXPECT_EQ(totals.elements, 15'706'484'224U);
}

TEST(Expected, OnlyNormsOfV32AreF32) {
  for (const char* name : {"deepseek_v3", "deepseek_v32"}) {
    std::uint64_t n_f32_norms = 0;
    for (const TensorRule& rule : family_named(name).rules) {
      const bool is_norm =
          rule.pattern.ends_with("norm.weight") || rule.pattern.ends_with("norm.bias");
      if (rule.synth_dtype == DType::kF32 && is_norm) ++n_f32_norms;
      EXPECT_TRUE(rule.role != Role::kRouterBias || rule.synth_dtype == DType::kF32);
      EXPECT_TRUE(rule.role != Role::kMtpProj || rule.synth_dtype == DType::kBf16);
    }
    EXPECT_EQ(n_f32_norms, std::string_view(name) == "deepseek_v32" ? 10U : 0U);
  }
}

TEST(Expected, GlmMissesOnlyIndexersThatTheConfigPromises) {
  const Family& family = family_named("glm_moe_dsa");
  const auto indexers = [&](const ModelConfig& config) {
    std::set<std::uint32_t> layers;
    for_each_expected(family, config, false, [&](const ExpectedTensor& tensor) {
      if (tensor.rule->role == Role::kIndexerK) layers.insert(*tensor.layer);
    });
    return layers;
  };
  EXPECT_EQ(indexers(reference(family)).size(), 79U);
  const ModelConfig config = changed(
      family, {{"num_hidden_layers", 4}, {"indexer_types", {"full", "shared", "shared", "full"}}});
  EXPECT_EQ(indexers(config), (std::set<std::uint32_t>{0, 3, 4}))
      << "layer 4 predicts, and shares with none";
  const Json by_letters = {{"num_hidden_layers", 4}, {"index_topk_pattern", "FSSF"}};
  EXPECT_EQ(indexers(changed(family, by_letters)), (std::set<std::uint32_t>{0, 3, 4}));
  const Json by_distance = {
      {"num_hidden_layers", 4}, {"index_topk_freq", 2}, {"index_skip_topk_offset", 1}};
  EXPECT_EQ(indexers(changed(family, by_distance)), (std::set<std::uint32_t>{0, 2, 4}));
  EXPECT_TRUE(NameGrammar(family, config).match("model.layers.1.self_attn.indexer.wk.weight"))
      << "one that is there all the same is accepted";
}

TEST(Expected, GlmsMtpLayerMayShareEmbeddingAndHead) {
  for (const char* name : {"glm4_moe", "glm_moe_dsa", "glm5_next"}) {
    const Family& family = family_named(name);
    ModelConfig config;
    config.num_hidden_layers = 2;
    config.num_nextn_predict_layers = 1;
    std::set<Role> roles;
    for_each_expected(family, config, false,
                      [&](const ExpectedTensor& tensor) { roles.insert(tensor.rule->role); });
    EXPECT_TRUE(roles.contains(Role::kMtpHeadNorm)) << name;
    EXPECT_FALSE(roles.contains(Role::kMtpEmbedding)) << name;
    EXPECT_FALSE(roles.contains(Role::kMtpHead)) << name;
    const NameGrammar grammar(family, config);
    EXPECT_TRUE(grammar.match("model.layers.2.embed_tokens.weight")) << name;
    EXPECT_TRUE(grammar.match("model.layers.2.shared_head.head.weight")) << name;
  }
}

TEST(Expected, StackedFormReplacesTheExperts) {
  const Family& family = family_named("qwen3_moe");
  const ModelConfig config = reference(family);
  std::map<std::string, Shape> shapes;
  for_each_expected(family, config, true, [&](const ExpectedTensor& tensor) {
    shapes[tensor.name] = rule_shape(*tensor.rule, config, tensor.layer);
  });
  EXPECT_EQ(shapes["model.layers.0.mlp.experts.gate_up_proj"], (Shape{128, 1536, 2048}));
  EXPECT_EQ(shapes["model.layers.0.mlp.experts.down_proj"], (Shape{128, 2048, 768}));
  EXPECT_FALSE(shapes.contains("model.layers.0.mlp.experts.0.up_proj.weight"));
  EXPECT_EQ(shapes.size(), 3U + 48U * (2 + 6 + 3));
}

TEST(Expected, RefusesAConfigThatPromisesTooMuch) {
  const Family& family = family_named("deepseek_v3");
  const ModelConfig config =
      changed(family, {{"num_hidden_layers", 1'000'000}, {"n_routed_experts", 1'000'000}});
  expect_error(ErrorCode::kLimit, {"promises more than"},
               [&] { for_each_expected(family, config, false, [](const ExpectedTensor&) {}); });
}

class GoldenNames : public ::testing::TestWithParam<const char*> {};

// Checkpoints that transformers saved: every tensor has its row and shape, every promised tensor is
// there, but for the MTP layer, which transformers promises in its config and never saves.
TEST_P(GoldenNames, AreTheGrammar) {
  const std::string folder = std::string(INGOT_SOURCE_DIR) + "/tests/golden/arch/" + GetParam();
  std::ifstream config_file(folder + "/config.json");
  std::stringstream text;
  text << config_file.rdbuf();
  const ModelConfig config = parse_model_config(text.str(), "config.json");
  const Family* family = family_of(config);
  ASSERT_NE(family, nullptr);
  EXPECT_EQ(family->name, GetParam());
  const NameGrammar grammar(*family, config);

  std::set<std::string> names;
  std::ifstream list(folder + "/names.txt");
  for (std::string name, dtype, shape; list >> name >> dtype >> shape;) {
    names.insert(name);
    const auto match = grammar.match(name);
    ASSERT_TRUE(match) << name;
    EXPECT_EQ(fmt::format("{}", fmt::join(rule_shape(*match->rule, config, match->layer), "x")),
              shape)
        << name;
  }
  ASSERT_FALSE(names.empty());
  for_each_expected(*family, config, false, [&](const ExpectedTensor& tensor) {
    const bool is_mtp = tensor.layer && *tensor.layer >= config.num_hidden_layers;
    EXPECT_EQ(names.contains(tensor.name), !is_mtp) << tensor.name;
  });
}

INSTANTIATE_TEST_SUITE_P(Arch, GoldenNames,
                         ::testing::Values("deepseek_v2", "deepseek_v3", "glm_moe_dsa",
                                           "qwen3_moe"),
                         [](const auto& family) { return std::string(family.param); });

/// Names of tensors that a family promises under a config.
std::set<std::string> promised(const char* family, const char* config_text) {
  const ModelConfig config = parse_model_config(config_text, "config.json");
  std::set<std::string> names;
  for_each_expected(*find_family(family), config, false,
                    [&](const ExpectedTensor& tensor) { names.insert(tensor.name); });
  return names;
}

TEST(FamilyRows, NemotronPredictsInStepsOfSeveralLayers) {
  constexpr const char* kConfig = R"({"model_type": "nemotron_h", "num_nextn_predict_layers": 1,
    "n_routed_experts": 2, "n_shared_experts": 1, "hidden_size": 8, "num_attention_heads": 2, %s})";
  const auto with = [&](std::string lists) {
    std::string text = kConfig;
    return text.replace(text.find("%s"), 2, lists);
  };
  const auto by_letters =
      promised("nemotron_h", with(R"("num_hidden_layers": 2, "hybrid_override_pattern": "ME",
                            "mtp_hybrid_override_pattern": "*E")")
                                 .c_str());
  EXPECT_TRUE(by_letters.contains("backbone.layers.0.mixer.in_proj.weight"));
  EXPECT_TRUE(by_letters.contains("mtp.layers.0.mixer.q_proj.weight"));
  EXPECT_TRUE(by_letters.contains("mtp.layers.1.mixer.experts.1.up_proj.weight"));
  EXPECT_FALSE(by_letters.contains("mtp.layers.1.mixer.q_proj.weight"));
  EXPECT_FALSE(by_letters.contains("mtp.layers.2.norm.weight"));
  EXPECT_EQ(promised("nemotron_h", with(R"("layers_block_type": ["mamba", "moe"],
                                           "mtp_layers_block_type": ["attention", "moe"])")
                                       .c_str()),
            by_letters);
}

TEST(FamilyRows, StepPredictsWithDenseLayers) {
  const auto names = promised("step3p7", R"({"model_type": "step3p5", "num_hidden_layers": 2,
    "num_nextn_predict_layers": 2, "moe_layers_enum": "1", "moe_num_experts": 2,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention",
                    "sliding_attention"]})");
  for (const char* name : {"model.layers.1.moe.gate.weight", "model.layers.2.mlp.gate_proj.weight",
                           "model.layers.3.self_attn.q_proj.weight",
                           "model.layers.3.transformer.shared_head.output.weight"})
    EXPECT_TRUE(names.contains(name)) << name;
  EXPECT_FALSE(names.contains("model.layers.2.moe.gate.weight"));
  EXPECT_FALSE(names.contains("model.layers.1.eh_proj.weight"));
}

}  // namespace
}  // namespace ingot::formats
