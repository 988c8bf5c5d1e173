#include "formats/family/family.h"

#include <fmt/ranges.h>

#include "check/rules/loader_rules.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/family/families.h"
#include "formats/family/family_yaml.h"
#include "formats/json/json.h"
#include "formats/storage/encoding.h"
#include "synth/synth.h"
#include "tests/formats/config/changed_config.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

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

// Lists of quantization configs name modules, and a parameter of another name is no module's
// weight.
TEST(Grammar, RowsThatListsNameAreModulesOrStacks) {
  for (const Family* family : families()) {
    for (const TensorRule& rule : family->rules) {
      if (rule.silence == Silence::kPlain || is_expert_stack(rule.role)) continue;
      EXPECT_TRUE(rule.pattern.ends_with(".weight")) << family->name << ": " << rule.pattern;
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

// Names in config.json that several models have: which family is meant.

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
                            "model.projector.layers.weight", "model.vision_embedder.pos_embedding"})
    EXPECT_EQ(grammar.match(tower)->rule->role, Role::kOtherModality) << tower;
  // A config that does not mention latent attention has it.
  Json keys = Json::parse(R"({"model_type": "deepseek_v2"})");
  EXPECT_EQ(family_of(parse_model_config(keys.dump(), "config.json")), find_family("deepseek_v2"));
}

TEST(Grammar, CountsTensorsOfHeads) {
  const ModelConfig config = parse_model_config(
      R"({"model_type": "stablelm", "num_hidden_layers": 1, "hidden_size": 64, "vocab_size": 8,
          "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
          "qk_layernorm": true})",
      "config.json");
  const NameGrammar grammar(*find_family("stablelm"), config);
  const auto role = [&](std::string_view of, int head) {
    const auto match =
        grammar.match(fmt::format("model.layers.0.self_attn.{}.norms.{}.weight", of, head));
    return match ? std::optional(match->rule->role) : std::nullopt;
  };
  EXPECT_EQ(role("q_layernorm", 3), Role::kQNorm);
  EXPECT_EQ(role("k_layernorm", 1), Role::kKNorm);
  EXPECT_EQ(role("k_layernorm", 2), std::nullopt);
  EXPECT_EQ(role("q_layernorm", 4), std::nullopt);
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

using namespace check;

namespace {

constexpr const char* kFlash = R"({
  "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "expert_dtype": "fp4",
  "hidden_size": 4096, "num_hidden_layers": 43, "num_nextn_predict_layers": 1,
  "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
  "num_experts_per_tok": 6, "num_hash_layers": 3, "n_group": null, "topk_group": null,
  "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512, "q_lora_rank": 1024,
  "o_groups": 8, "o_lora_rank": 1024, "hc_mult": 4,
  "qk_rope_head_dim": 64, "index_n_heads": 64, "index_head_dim": 128, "index_topk": 512,
  "topk_method": "noaux_tc", "scoring_func": "sqrtsoftplus", "vocab_size": 129280,
  "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
    "scale_fmt": "ue8m0", "weight_block_size": [128, 128]}})";

using DeepseekV4 = InTempDir;

TEST_F(DeepseekV4, PromisesTheTensorsOfTheRelease) {
  const Family& family = *find_family("deepseek_v4");
  Json keys = parse_json(kFlash, "config.json");
  keys["compress_ratios"] = {0, 0};
  for (int layer = 2; layer < 43; ++layer)
    keys["compress_ratios"].push_back(layer % 2 == 0 ? 4 : 128);
  keys["compress_ratios"].push_back(0);
  const ModelConfig config = parse_model_config(keys.dump(), "config.json");
  EXPECT_EQ(family_of(config), &family);
  EXPECT_NO_THROW(require_widths(family, config));
  const NameGrammar grammar(family, config);
  std::uint64_t n_stored = 0;
  const auto count = [&](const std::string& name) {
    const auto match = grammar.match(name);
    ASSERT_TRUE(match) << name;
    n_stored += match->rule->fp8_by_default ? 2U : 1U;
  };
  for_each_expected(family, config, false, [&](const ExpectedTensor& tensor) {
    const auto match = grammar.match(tensor.name);
    ASSERT_TRUE(match) << tensor.name;
    ASSERT_EQ(match->rule, tensor.rule) << tensor.name;
    ASSERT_EQ(match->layer, tensor.layer) << tensor.name;
    count(tensor.name);
  });
  for (const char* leaf : {"norm.weight", "hc_head_fn", "hc_head_base", "hc_head_scale"})
    count(std::string("mtp.0.") + leaf);
  // 41 layers with a compressor, 21 of them with an indexer; the first three route by a table.
  EXPECT_EQ(n_stored, 69'187U);
}

TEST_F(DeepseekV4, CountsMtpLayersFromNought) {
  const ModelConfig config = parse_model_config(kFlash, "config.json");
  const NameGrammar grammar(*find_family("deepseek_v4"), config);
  EXPECT_EQ(grammar.match("mtp.0.e_proj.weight")->layer, 43U);
  EXPECT_EQ(grammar.match("mtp.0.ffn.experts.255.w2.weight")->expert, 255U);
  for (const char* name :
       {"mtp.1.e_proj.weight", "mtp.00.e_proj.weight", "mtp.4294967295.e_proj.weight",
        "mtp.e_proj.weight", "mtp.{mtp}.e_proj.weight", "layers.43.attn_norm.weight",
        "layers.0.e_proj.weight", "model.layers.0.attn_norm.weight",
        "mtp.0.ffn.experts.256.w2.weight", "layers.0.mtp.0.e_proj.weight"}) {
    EXPECT_FALSE(grammar.match(name)) << name;
  }
}

TEST_F(DeepseekV4, DraftLayersOfDSparkFollowTheListOfRatios) {
  const ModelConfig config = parse_model_config(R"({"model_type": "deepseek_v4", "hidden_size": 64,
    "num_hidden_layers": 2, "num_nextn_predict_layers": 1, "compress_ratios": [0, 4, 0, 0, 0],
    "dspark_block_size": 5, "dspark_markov_rank": 8, "n_routed_experts": 1})",
                                                "config.json");
  const NameGrammar grammar(*find_family("deepseek_v4"), config);
  EXPECT_EQ(grammar.match("mtp.2.markov_head.markov_w1.weight")->layer, 4U);
  EXPECT_TRUE(grammar.match("mtp.0.main_proj.weight"));
  EXPECT_FALSE(grammar.match("mtp.0.e_proj.weight"));
  EXPECT_FALSE(grammar.match("mtp.3.attn_norm.weight"));
}

TinyCheckpoint tiny_v4() {
  TinyCheckpoint tiny;
  tiny.config = R"({
    "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "hidden_size": 64,
    "num_hidden_layers": 1, "num_nextn_predict_layers": 0, "moe_intermediate_size": 32,
    "n_routed_experts": 1, "n_shared_experts": 1, "num_experts_per_tok": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "q_lora_rank": 32,
    "o_groups": 2, "o_lora_rank": 12, "hc_mult": 2,
    "topk_method": "noaux_tc", "vocab_size": 8, "index_n_heads": 2, "index_head_dim": 8,
    "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
      "scale_fmt": "ue8m0", "weight_block_size": [128, 128]}})";
  auto& tensors = tiny.files["model.safetensors"];
  const auto fp8 = [&](const std::string& stem, std::uint64_t n, std::uint64_t k) {
    tensors.push_back({stem + ".weight", "F8_E4M3", {n, k}});
    tensors.push_back({stem + ".scale", "F8_E8M0", {1, 1}});
  };
  const auto fp4 = [&](const std::string& stem, std::uint64_t n, std::uint64_t k) {
    tensors.push_back({stem + ".weight", "I8", {n, k / 2}});
    tensors.push_back({stem + ".scale", "F8_E8M0", {n, k / 32}});
  };
  const std::string layer = "layers.0.";
  const auto mixing = [&](const std::string& stem, std::uint64_t rows, std::uint64_t scales) {
    tensors.push_back({stem + "_fn", "F32", {rows, 128}});
    tensors.push_back({stem + "_base", "F32", {rows}});
    tensors.push_back({stem + "_scale", "F32", {scales}});
  };
  mixing("hc_head", 2, 1);
  tensors.push_back({"embed.weight", "BF16", {8, 64}});
  tensors.push_back({"head.weight", "BF16", {8, 64}});
  tensors.push_back({"norm.weight", "BF16", {64}});
  for (const char* name : {"attn_norm.weight", "ffn_norm.weight"})
    tensors.push_back({layer + name, "BF16", {64}});
  mixing(layer + "hc_attn", 8, 3);
  mixing(layer + "hc_ffn", 8, 3);
  tensors.push_back({layer + "attn.attn_sink", "F32", {2}});
  fp8(layer + "attn.wq_a", 32, 64);
  fp8(layer + "attn.wq_b", 32, 32);
  fp8(layer + "attn.wkv", 16, 64);
  fp8(layer + "attn.wo_a", 24, 16);
  fp8(layer + "attn.wo_b", 64, 24);
  tensors.push_back({layer + "attn.q_norm.weight", "BF16", {32}});
  tensors.push_back({layer + "attn.kv_norm.weight", "BF16", {16}});
  tensors.push_back({layer + "ffn.gate.weight", "BF16", {1, 64}});
  tensors.push_back({layer + "ffn.gate.tid2eid", "I64", {8, 1}});
  fp4(layer + "ffn.experts.0.w1", 32, 64);
  fp4(layer + "ffn.experts.0.w3", 32, 64);
  fp4(layer + "ffn.experts.0.w2", 64, 32);
  fp8(layer + "ffn.shared_experts.w1", 32, 64);
  fp8(layer + "ffn.shared_experts.w3", 32, 64);
  fp8(layer + "ffn.shared_experts.w2", 64, 32);
  return tiny;
}

TEST_F(DeepseekV4, IsReadUnderItsNativeNames) {
  tiny_v4().write(dir_.path());
  const Checkpoint model = Checkpoint::open(dir_.path());
  EXPECT_EQ(model.family().name, "deepseek_v4");
  EXPECT_EQ(model.dialect().name, "deepseek");
  std::size_t n_fp8 = 0, n_fp4 = 0;
  for (const LogicalTensor& tensor : model.tensors()) {
    ASSERT_NE(tensor.rule, nullptr) << tensor.name;
    EXPECT_EQ(scheme_facts(tensor.encoding.scheme).quantized, tensor.rule->fp8_by_default);
    n_fp8 += tensor.encoding.scheme == SchemeId::kFp8Block ? 1 : 0;
    n_fp4 += tensor.encoding.scheme == SchemeId::kMxfp4 ? 1 : 0;
  }
  EXPECT_EQ(n_fp8, 8U);
  EXPECT_EQ(n_fp4, 3U);
}

TEST_F(DeepseekV4, HasNothingThatLoadersRefuse) {
  TinyCheckpoint tiny = tiny_v4();
  // 2^0 for every scale.
  for (auto& tensor : tiny.files["model.safetensors"]) {
    if (tensor.dtype != "F8_E8M0") continue;
    tensor.data = std::string(tensor.shape[0] * tensor.shape[1], '\x7f');
  }
  tiny.write(dir_.path());
  for (const Finding& finding : run_loader_rules(Checkpoint::open(dir_.path()), {.deep = true})) {
    EXPECT_NE(finding.severity, Severity::kError)
        << finding.rule << ": " << finding.tensor << " " << finding.message;
  }
}

TEST_F(DeepseekV4, ChecksTheShapesThatTheConfigGives) {
  TinyCheckpoint tiny = tiny_v4();
  ingot::testing::tensor_of(tiny, "layers.0.ffn.experts.0.w1.weight").shape = {32, 64};
  ingot::testing::tensor_of(tiny, "layers.0.ffn.experts.0.w1.scale").shape = {32, 4};
  tiny.write(dir_.path());
  expect_error(ErrorCode::kShapeMismatch, {"experts.0.w1", "[32, 128]", "[32, 64]"},
               [&] { Checkpoint::open(dir_.path()); });
}

TEST_F(DeepseekV4, IsSynthesizedWithAConfigOnly) {
  SynthOptions options;
  options.family = find_family("deepseek_v4");
  expect_error(ErrorCode::kInvalidArgument, {"deepseek_v4", "no config of its own", "--config"},
               [&] { static_cast<void>(synth_config_text(options)); });
}

}  // namespace
}  // namespace ingot::formats
