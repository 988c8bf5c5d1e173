#include "formats/adapters/adapter_config.h"

#include <cmath>

#include <fmt/format.h>

#include "tests/support/test.h"

namespace ingot::formats {
namespace {

using namespace ingot::testing;

constexpr const char* kWhere = "adapter_config.json";

TEST(AdapterConfig, FirstPatternThatMatchesTheEndWins) {
  const AdapterConfig config = parse_adapter_config(
      R"({"r": 8, "lora_alpha": 16, "rank_pattern": {"layers\\.[12]\\..*proj": 3, "q_proj": 4,
          "layers.0.self_attn.q_proj": 5, "o_pro.": 6}})",
      kWhere);
  EXPECT_EQ(config.rank.of("model.layers.1.self_attn.q_proj"), 3);
  EXPECT_EQ(config.rank.of("model.layers.0.self_attn.q_proj"), 4);
  EXPECT_EQ(config.rank.of("model.layers.0.self_attn.o_proj"), 6) << "a dot is any character";
  EXPECT_EQ(config.rank.of("model.layers.0.self_attn.wq_proj"), 8) << "words are whole";
  EXPECT_EQ(config.scale_of("model.layers.0.mlp.up_proj", 8), 2);
}

TEST(AdapterConfig, RankStabilizedScaleDividesByTheRoot) {
  const AdapterConfig config =
      parse_adapter_config(R"({"r": 2, "lora_alpha": 6, "use_rslora": true})", kWhere);
  EXPECT_EQ(config.scale_of("q_proj", 2), 6 / std::sqrt(2.0));
}

TEST(AdapterConfig, RefusesWhatAddsOtherwise) {
  const struct {
    const char *text, *words;
  } refused[] = {{R"({"peft_type": "IA3"})", "IA3"},
                 {R"({"use_qalora": true})", "use_qalora"},
                 {R"({"layer_replication": [[0, 2]]})", "layer_replication"},
                 {R"({"init_lora_weights": "of_next_year"})", "init_lora_weights"},
                 {R"({"key_of_next_year": {"a": 1}})", "key_of_next_year"}};
  for (const auto& row : refused)
    expect_error(ErrorCode::kUnsupported, row.words,
                 [&] { parse_adapter_config(row.text, kWhere); });
  for (const char* text : {R"({"use_qalora": false, "arrow_config": null, "key_of_next_year": {}})",
                           R"({"init_lora_weights": "gaussian", "modules_to_save": ["norm"]})",
                           R"({"init_lora_weights": "mica"})"})
    EXPECT_TRUE(parse_adapter_config(text, kWhere).residual_of.empty());
  EXPECT_EQ(parse_adapter_config(R"({"init_lora_weights": "pissa_niter_4"})", kWhere).residual_of,
            "pissa_niter_4");
}

TEST(AdapterConfig, RefusesHostileNumbers) {
  for (const char* text : {R"({"r": 0})", R"({"r": -1})", R"({"r": 1.5})", R"({"lora_alpha": "x"})",
                           R"({"rank_pattern": {"q": "4"}})", R"({"rank_pattern": [4]})",
                           R"({"trainable_token_indices": [-1]})", R"([])"})
    expect_error(ErrorCode::kCorrupt, kWhere, [&] { parse_adapter_config(text, kWhere); });
  std::string many = R"({"rank_pattern": {)";
  for (int i = 0; i < 10'001; ++i) many += fmt::format("{}\"a+{}\": 1", i == 0 ? "" : ",", i);
  expect_error(ErrorCode::kLimit, "expressions",
               [&] { parse_adapter_config(many + "}}", kWhere); });
}

TEST(AdapterConfig, ErrorsNameTheLineOfTheKey) {
  const struct {
    ErrorCode code;
    const char *text, *words;
  } refused[] = {{ErrorCode::kUnsupported, "{\n\"r\": 4,\n\n\"use_qalora\": true}",
                  "adapter_config.json: line 4: says use_qalora"},
                 {ErrorCode::kCorrupt, "{\"task_type\": \"r\",\n\"r\" : 0}",
                  "adapter_config.json: line 2: says rank 0"},
                 {ErrorCode::kInvalidArgument, "{\"rank_pattern\": {\n\"q\": 4,\n\"(\": 2}}",
                  "adapter_config.json: line 3: pattern"}};
  for (const auto& row : refused)
    expect_error(row.code, row.words, [&] { parse_adapter_config(row.text, kWhere); });
  const AdapterConfig config =
      parse_adapter_config("{\"alpha_pattern\":\n {\"((a|.)+)+[!?]\": 2}}", kWhere);
  expect_error(ErrorCode::kLimit, "adapter_config.json: line 2: pattern", [&] {
    (void)config.alpha.of("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
  });
}

TEST(AdapterConfig, ListsOfTokensAreForAnyEmbedding) {
  const AdapterConfig list = parse_adapter_config(R"({"trainable_token_indices": [3, 1]})", kWhere);
  ASSERT_NE(list.ids_of("transformer.wte"), nullptr);
  EXPECT_EQ(*list.ids_of("transformer.wte"), (std::vector<std::uint64_t>{3, 1}));
  const AdapterConfig named =
      parse_adapter_config(R"({"trainable_token_indices": {"wte": [3], "lm_head": [1]}})", kWhere);
  EXPECT_EQ(*named.ids_of("lm_head"), (std::vector<std::uint64_t>{1}));
  EXPECT_EQ(named.ids_of("transformer.wpe"), nullptr);
}

}  // namespace
}  // namespace ingot::formats
