#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/config/keys.h"
#include "formats/config/nested_config.h"
#include "formats/family/width.h"
#include "tests/formats/config/changed_config.h"
#include "tests/support/test.h"

// Shapes follow every width that a config states.

namespace ingot::formats {
namespace {

// Words of keys that are widths, and those of them that are none.
constexpr std::array kWidthWords = {"size", "dim", "rank", "heads", "width", "experts", "kernel"};
constexpr std::array kOtherWords = {"token",   "position", "sliding",  "window", "chunk",
                                    "topk",    "top_k",    "per_tok",  "block",  "group",
                                    "ep_size", "merge",    "projector"};
/// Widths that no shape has: parts of one that the config states too, another spelling of one, or a
/// key that its model does not read.
const std::set<std::string> kNoShape = {
    "rotary_dim", "qk_head_dim", "unpadded_vocab_size", "mlp_intermediate_size",
    // head_dim of Hunyuan; linear_attn_config of Kimi-Linear and GLM-5-Next.
    "attention_head_dim", "linear_conv_kernel_dim", "linear_head_dim", "linear_num_heads",
    // LFM2, Hunyuan.
    "conv_dim", "conv_dim_out", "num_heads", "org_vocab_size"};

bool has_any(const std::string& key, const auto& words) {
  return std::ranges::any_of(words,
                             [&](const char* word) { return key.find(word) != std::string::npos; });
}

/// The shape of every row in every layer that has it.
std::multimap<std::string, Shape> shapes_of(const ModelConfig& config) {
  std::multimap<std::string, Shape> shapes;
  const Family* family = family_of(config);
  for (const TensorRule& rule : family->rules) {
    if (is_in_layer(rule, config, std::nullopt))
      shapes.emplace(rule.pattern, rule_shape(rule, config, std::nullopt));
    const std::uint64_t n = config.num_hidden_layers + config.num_nextn_predict_layers;
    for (std::uint32_t layer = 0; layer < n; ++layer) {
      if (is_in_layer(rule, config, layer))
        shapes.emplace(rule.pattern, rule_shape(rule, config, layer));
    }
  }
  return shapes;
}

bool has_dense_layers(const ModelConfig& config) {
  return std::ranges::any_of(family_of(config)->rules, [&](const TensorRule& rule) {
    if (rule.role != Role::kDenseUp) return false;
    for (std::uint32_t layer = 0; layer < config.num_hidden_layers; ++layer) {
      if (is_in_layer(rule, config, layer)) return true;
    }
    return false;
  });
}

bool may_have_no_shape(const std::string& key, const ModelConfig& config) {
  if (kNoShape.contains(key)) return true;
  // Latent attention has keys and values of one width for all heads, in V4 that of a head.
  const bool is_v4 = config.model_type == "deepseek_v4";
  const bool is_latent = is_v4 || config.kv_lora_rank != 0;
  if (key == "num_key_value_heads") return is_latent;
  if (key == "head_dim") return is_latent && !is_v4;
  if (key == "qk_rope_head_dim") return is_v4;
  const Json& keys = text_keys(config);
  if (key == "moe_shared_expert_intermediate_size") return config.model_type == "sarvam_moe";
  if (key == "n_shared_experts") return keys.contains("shared_intermediate_size");
  // Second spellings of a width, which is what counts.
  if (key == "expert_hidden_dim") return keys.contains("moe_intermediate_size");
  if (key == "ffn_hidden_size") return keys.contains("intermediate_size");
  if (key == "vocab_size_per_layer_input") return keys.value("hidden_size_per_layer_input", 0) == 0;
  // Heads of queries are those of keys, for each of a token's experts.
  if (key == "num_attention_heads") return config.model_type == "jetmoe";
  return key.starts_with("intermediate_size") && !has_dense_layers(config);
}

TEST(ConfigWidths, AreInSomeShapeOfTheFamily) {
  const std::filesystem::path folder = INGOT_SOURCE_DIR "/tests/golden/saved_configs";
  std::size_t n_keys = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".json") continue;
    const std::string text = read_text_file(entry.path(), 1 << 20);
    const ModelConfig config = parse_model_config(text, "config.json");
    if (family_of(config) == nullptr) continue;
    const auto before = shapes_of(config);
    const Json document = config.raw;
    Json copy = document;
    const Json keys = text_section(config, copy);
    for (const auto& [key, value] : keys.items()) {
      if (!value.is_number_unsigned() || value == 0 || !has_any(key, kWidthWords) ||
          has_any(key, kOtherWords) || may_have_no_shape(key, config))
        continue;
      Json changed = document;
      text_section(config, changed)[key] = 2 * value.get<std::uint64_t>();
      try {
        EXPECT_TRUE(shapes_of(parse_model_config(changed.dump(), "config.json")) != before)
            << entry.path().filename() << ": " << key << " is in no shape";
        ++n_keys;
      } catch (const ingot::Error&) {
        // Two spellings of one width contradict each other then.
      }
    }
  }
  EXPECT_GT(n_keys, 200U);
}

/// A row has the width of all shared experts; nemotron_h multiplies that of one.
constexpr const char* kOfOneExpert = "moe_shared_expert_intermediate_size";

/// Keys of config.json that a row names, by another spelling than the usual one.
std::set<std::string> other_spellings_in(const TensorRule& rule) {
  std::vector<const Width*> widths(rule.sections.begin(), rule.sections.end());
  for (const Width* width : rule.shape) widths.push_back(width);
  widths.insert(widths.end(), {rule.heads, rule.condition});
  std::set<std::string> found;
  for (const KeyRow& row : key_rows()) {
    for (const std::string& spelling : row.spellings) {
      const bool is_named =
          std::ranges::any_of(
              widths,
              [&](const Width* width) { return width != nullptr && width->mentions(spelling); }) ||
          std::ranges::find(rule.layers, spelling, &LayerCondition::key) != rule.layers.end();
      if (is_named && spelling != row.key() && spelling != kOfOneExpert) found.insert(spelling);
    }
  }
  return found;
}

// A key without a row is its family's own. One with a row has type, limits and other spellings, of
// which a family has a part where it names the usual one.
TEST(ConfigWidths, NameKeysByTheirUsualSpelling) {
  for (const Family* family : families()) {
    for (const TensorRule& rule : family->rules) {
      EXPECT_TRUE(other_spellings_in(rule).empty())
          << family->name << ": " << *other_spellings_in(rule).begin();
    }
  }
}

TEST(ConfigWidths, OfSharedExpertsAreTheirOwn) {
  const ModelConfig config = parse_model_config(
      R"({"model_type": "minimax_m3_vl", "text_config": {"num_hidden_layers": 2, "vocab_size": 104,
          "hidden_size": 72, "head_dim": 24, "num_attention_heads": 4, "num_key_value_heads": 2,
          "moe_layer_freq": [0, 1], "intermediate_size": 32, "shared_intermediate_size": 40,
          "dense_intermediate_size": 88, "num_local_experts": 6, "n_shared_experts": 1}})",
      "config.json");
  std::map<std::string, Shape> shapes;
  for (const auto& [pattern, shape] : shapes_of(config))
    shapes[pattern.substr(pattern.find("layer}.") + 7)] = shape;
  EXPECT_EQ(shapes["block_sparse_moe.shared_experts.up_proj.weight"], (Shape{40, 72}));
  EXPECT_EQ(shapes["block_sparse_moe.experts.{expert}.w1.weight"], (Shape{32, 72}));
  EXPECT_EQ(shapes["mlp.up_proj.weight"], (Shape{88, 72}));
}

using namespace ingot::testing;

TEST(Widths, NameWhatTheConfigLacks) {
  const Family& family = family_named("deepseek_v32");
  const ModelConfig config = changed(family, {{"kv_lora_rank", nullptr}, {"index_n_heads", 0}});
  expect_error(ErrorCode::kCorrupt, {"kv_lora_rank", "index_n_heads"},
               [&] { require_widths(family, config); });
  expect_error(ErrorCode::kCorrupt, {"num_hidden_layers"}, [&] {
    require_widths(family, changed(family, {{"num_hidden_layers", 0}}));
  });
}

// Hunyuan's lists, and a key that the program has no name for.
TEST(Widths, FollowTheListsOfTheConfig) {
  const Family& family = family_named("hunyuan_v1_moe");
  const Json keys = {{"num_hidden_layers", 3},
                     {"hidden_size", 64},
                     {"num_attention_heads", 4},
                     {"num_key_value_heads", {4, 2, 1}},
                     {"head_dim", 16},
                     {"vocab_size", 32},
                     {"num_experts", 4},
                     {"moe_topk", {1, 2, 3}},
                     {"num_shared_expert", {2, 1, 0}},
                     {"intermediate_size", 12},
                     {"moe_intermediate_size", {8, 16, 24}},
                     {"extra_width", {5, 6, 7}}};
  const ModelConfig config = parse_model_config(keys.dump(), "config.json");
  const NameGrammar grammar(family, config);
  const auto shape = [&](const std::string& name) {
    const auto match = grammar.match("model.layers." + name + ".weight");
    return match ? rule_shape(*match->rule, config, match->layer) : Shape();
  };
  EXPECT_EQ(shape("0.mlp.experts.3.up_proj"), (Shape{8, 64}));
  EXPECT_EQ(shape("2.mlp.experts.3.down_proj"), (Shape{64, 24}));
  EXPECT_EQ(shape("0.mlp.shared_mlp.up_proj"), (Shape{24, 64}));
  EXPECT_EQ(shape("1.mlp.shared_mlp.down_proj"), (Shape{64, 12}));
  EXPECT_EQ(shape("2.mlp.shared_mlp.up_proj"), Shape()) << "a layer without shared experts";
  EXPECT_EQ(shape("1.self_attn.k_proj"), (Shape{32, 64}));
  EXPECT_NO_THROW(require_widths(family, config));
  const Width extra = Width::parse("2 * extra_width");
  EXPECT_EQ(extra.size(config, 1), 12U);
  EXPECT_TRUE(extra.differs_by_layer(config));
  expect_error(ErrorCode::kCorrupt, {"'extra_width' is [5,6,7]"},
               [&] { static_cast<void>(extra.size(config)); });
  const Width of_first_two = Width::parse("2 / (layer + 1)");
  EXPECT_TRUE(of_first_two.differs_by_layer(config));
  EXPECT_EQ(of_first_two.size(config, 1), 1U);
  EXPECT_EQ(of_first_two.size(config, 2), 0U);
}

TEST(Widths, NameTheLayerThatLacksOne) {
  const Family& family = family_named("hunyuan_v1_moe");
  const Json keys = {
      {"num_hidden_layers", 2},   {"hidden_size", 64},      {"num_attention_heads", 4},
      {"num_key_value_heads", 4}, {"head_dim", 16},         {"vocab_size", 32},
      {"num_experts", 4},         {"num_shared_expert", 1}, {"moe_intermediate_size", {8, 0}}};
  const ModelConfig config = parse_model_config(keys.dump(), "config.json");
  expect_error(ErrorCode::kCorrupt, {"moe_intermediate_size in layer 1"},
               [&] { require_widths(family, config); });
}

TEST(Widths, ThatOverflowAreRefused) {
  const Family& family = family_named("deepseek_v3");
  const Json keys = {{"num_attention_heads", 4294967296}, {"qk_nope_head_dim", 4294967296}};
  const ModelConfig config = changed(family, keys);
  expect_error(ErrorCode::kLimit, {"does not fit"}, [&] {
    static_cast<void>(Width::parse("num_attention_heads * qk_nope_head_dim").size(config));
  });
}

}  // namespace
}  // namespace ingot::formats
