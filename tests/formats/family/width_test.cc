#include "formats/family/width.h"

#include <gtest/gtest.h>

#include "tests/formats/config/changed_config.h"
#include "tests/support/expect_error.h"

namespace ingot::formats {
namespace {

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
