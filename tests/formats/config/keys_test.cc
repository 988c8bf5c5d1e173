#include "formats/config/keys.h"

#include "formats/config/config_meaning.h"
#include "formats/config/derived_keys.h"
#include "formats/config/released_words.h"
#include "formats/json/json.h"
#include "tests/support/test.h"

namespace ingot::formats {
namespace {

using ::testing::ElementsAre;
using testing::expect_error;

Json json(const std::string& text) {
  return parse_json(text, "config.json");
}

TEST(ConfigKeys, NoSpellingIsInTwoRows) {
  for (const KeyRow& row : key_rows()) {
    for (const std::string& spelling : row.spellings)
      EXPECT_EQ(find_key(spelling), &row) << spelling;
  }
  EXPECT_EQ(find_key("no_such_key"), nullptr);
}

TEST(ConfigKeys, EveryFieldHasOneRowOfItsType) {
  std::set<std::string> places;
  std::size_t n_fields = 0;
  ModelConfig model;
  for (const KeyRow& row : key_rows()) {
    SCOPED_TRACE(row.key());
    const auto place = [&](const void* field) {
      ++n_fields;
      places.insert(fmt::format("{}", field));
    };
    if (const auto* number = std::get_if<std::uint64_t ModelConfig::*>(&row.field)) {
      place(&(model.**number));
      EXPECT_TRUE(row.type == KeyType::kWidth || row.type == KeyType::kCount ||
                  row.type == KeyType::kOne);
    } else if (const auto* real = std::get_if<double ModelConfig::*>(&row.field)) {
      place(&(model.**real));
      EXPECT_EQ(row.type, KeyType::kReal);
    } else if (const auto* flag = std::get_if<bool ModelConfig::*>(&row.field)) {
      place(&(model.**flag));
      EXPECT_EQ(row.type, KeyType::kFlag);
    } else if (const auto* word = std::get_if<std::string ModelConfig::*>(&row.field)) {
      place(&(model.**word));
      EXPECT_EQ(row.type, KeyType::kWord);
    }
  }
  EXPECT_GT(n_fields, 30U);
  EXPECT_EQ(places.size(), n_fields);
}

TEST(ConfigKeys, AbsentValuesAreOfTheType) {
  std::size_t n_rows = 0;
  for (const KeyRow& row : key_rows()) {
    if (row.absent.empty()) continue;
    ++n_rows;
    const Json absent = json(std::string(row.absent));
    const bool is_flag = row.type == KeyType::kFlag, is_word = row.type == KeyType::kWord;
    EXPECT_EQ(absent.is_boolean(), is_flag) << row.key();
    EXPECT_EQ(absent.is_string(), is_word) << row.key();
    EXPECT_EQ(absent.is_number(), !is_flag && !is_word) << row.key();
  }
  EXPECT_GT(n_rows, 10U);
}

TEST(ConfigKeys, TheFirstSpellingThatIsThereCounts) {
  const Json keys = json(R"({"n_routed_experts": null, "num_local_experts": 4,
                             "moe_num_experts": 5, "num_experts_per_tok": null})");
  const ConfigKeys read(keys, "config.json");
  EXPECT_EQ(read.one("n_routed_experts"), 4U);
  EXPECT_STREQ(read.spelling("n_routed_experts"), "num_local_experts");
  EXPECT_EQ(read.number("num_experts_per_tok").largest, std::nullopt);
  EXPECT_EQ(read.one("num_experts_per_tok", 7), 7U);
  EXPECT_EQ(read.find("q_lora_rank"), nullptr);
  EXPECT_EQ(read.real("rms_norm_eps"), std::nullopt);
  EXPECT_FALSE(read.flag("attention_bias"));
  EXPECT_EQ(read.word("scoring_func"), "");
  EXPECT_EQ(read.step("moe_layer_freq"), 1U);
}

/// Reads a row as its type says.
void read(const KeyRow& row, const ConfigKeys& keys) {
  switch (row.type) {
    case KeyType::kAny:
      return;
    case KeyType::kFlag:
      return static_cast<void>(keys.flag(row.key()));
    case KeyType::kWord:
      return static_cast<void>(keys.word(row.key()));
    case KeyType::kReal:
      return static_cast<void>(keys.real(row.key()));
    case KeyType::kWidth:
    case KeyType::kCount:
    case KeyType::kOne:
      return static_cast<void>(keys.number(row.key()));
  }
}

TEST(ConfigKeys, RefuseOtherTypesInEverySpelling) {
  const std::set<std::string> numbers = {"-1", "1.5", "\"8\"", "true", "[8]", "{}"};
  for (const KeyRow& row : key_rows()) {
    std::set<std::string> bad;
    if (row.type == KeyType::kFlag) bad = {"1", "\"true\"", "[]"};
    if (row.type == KeyType::kWord) bad = {"1", "false", "[]"};
    if (row.type == KeyType::kReal) bad = {"-1e-6", "\"1\"", "true", "[1]"};
    if (row.type >= KeyType::kWidth) bad = numbers;
    if (row.type >= KeyType::kWidth) {
      const std::uint64_t most =
          row.type == KeyType::kWidth ? ConfigKeys::kMaxWidth : ConfigKeys::kMaxCount;
      bad.insert(std::to_string(most + 1));
      const Json keys = {{row.key(), most}};
      EXPECT_EQ(ConfigKeys(keys, "").number(row.key()).largest, most);
    }
    for (const std::string& spelling : row.spellings) {
      for (const std::string& value : bad) {
        SCOPED_TRACE(fmt::format("{}: {}", spelling, value));
        const Json keys = json(fmt::format(R"({{"{}": {}}})", spelling, value));
        expect_error(ErrorCode::kCorrupt, {"config.json: ", fmt::format("'{}'", spelling)},
                     [&] { read(row, ConfigKeys(keys, "config.json")); });
      }
    }
  }
}

TEST(ConfigKeys, NumbersMayBeListsByLayer) {
  const Json keys = json(R"({"num_layers": 2, "mtp_num_hidden_layers": 1, "v_head_dim": [8, 16],
                             "head_dim": [4, 4, 4], "first_k_dense_replace": [1, 2],
                             "hidden_size": [1, 2, 3, 4]})");
  const ConfigKeys read(keys, "config.json");
  EXPECT_EQ(read.number("v_head_dim").largest, 16U);
  EXPECT_THAT(read.number("v_head_dim").by_layer, ElementsAre(8, 16));
  EXPECT_EQ(read.number("head_dim").largest, 4U);
  EXPECT_TRUE(read.number("head_dim").by_layer.empty());
  expect_error(ErrorCode::kCorrupt, {"'first_k_dense_replace' differs between layers"},
               [&] { static_cast<void>(read.one("first_k_dense_replace")); });
  expect_error(ErrorCode::kCorrupt, {"'hidden_size'"},
               [&] { static_cast<void>(read.number("hidden_size")); });
}

TEST(DerivedKeys, ReadersAgreeOnTheMixtures) {
  for (const char* said : {R"("mlp_layer_types": ["dense", "sparse", "sparse", "dense"])",
                           R"("first_k_dense_replace": 1, "moe_layer_freq": [1, 1, 1, 0])",
                           R"("decoder_sparse_step": 1, "mlp_only_layers": [0, 3])"}) {
    const std::string text =
        fmt::format(R"({{"num_hidden_layers": 4, "n_routed_experts": 2, {}}})", said);
    EXPECT_THAT(parse_model_config(text, "config.json").layer_is_moe,
                ElementsAre(false, true, true, false));
    const ConfigMeaning meaning(json(text));
    EXPECT_EQ(*meaning.known().at("mlp_layer_types").value,
              json(R"(["dense", "sparse", "sparse", "dense"])"));
    EXPECT_TRUE(meaning.contradictions().empty());
  }
}

TEST(DerivedKeys, AWayThatReadersRefuseContradicts) {
  const ConfigMeaning meaning(json(R"({"num_hidden_layers": 2, "n_routed_experts": 2,
      "mlp_layer_types": ["dense", "sparse"], "decoder_sparse_step": 0})"));
  EXPECT_THAT(meaning.contradictions(),
              ElementsAre(::testing::HasSubstr("'decoder_sparse_step' is 0")));
  EXPECT_TRUE(meaning.known().contains("mlp_layer_types"));
}

TEST(KeySpellings, ThatDifferAreAFindingForEveryKey) {
  std::size_t n_pairs = 0;
  for (const KeyRow& row : key_rows()) {
    if (row.key().starts_with("rope.")) continue;
    for (std::size_t i = 1; i < row.spellings.size(); ++i) {
      const bool is_flag = row.type == KeyType::kFlag;
      const bool is_word = row.type == KeyType::kWord;
      const Json one = is_flag ? Json(true) : is_word ? Json("one") : Json(3);
      const Json other = is_flag ? Json(false) : is_word ? Json("other") : Json(4);
      const ConfigMeaning differs({{row.spellings[0], one}, {row.spellings[i], other}});
      EXPECT_THAT(differs.contradictions(),
                  ::testing::Contains(::testing::AllOf(::testing::HasSubstr(row.spellings[0]),
                                                       ::testing::HasSubstr(row.spellings[i]))))
          << row.spellings[i];
      const ConfigMeaning agrees({{row.spellings[0], one}, {row.spellings[i], one}});
      EXPECT_THAT(agrees.contradictions(), ::testing::IsEmpty()) << row.spellings[i];
      ++n_pairs;
    }
  }
  EXPECT_GT(n_pairs, 25U);
}

TEST(DerivedKeys, EveryWayOfMixturesMustAgree) {
  const auto found = [](const std::string& said) {
    return ConfigMeaning(json(R"({"num_hidden_layers": 4, "n_routed_experts": 2, )" + said + "}"))
        .contradictions();
  };
  const std::string list = R"("mlp_layer_types": ["dense", "sparse", "sparse", "sparse"], )";
  for (const char* key : {"first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"}) {
    EXPECT_THAT(found(fmt::format(R"({}"{}": 1)", list, key)), ::testing::IsEmpty()) << key;
    EXPECT_THAT(found(fmt::format(R"({}"{}": 2)", list, key)),
                ElementsAre(::testing::HasSubstr(key)));
  }
  EXPECT_THAT(found(R"("moe_layers": [1, 3], "interleave_moe_layer_step": 2)"),
              ::testing::IsEmpty());
  EXPECT_THAT(found(R"("moe_layers": [0, 3], "interleave_moe_layer_step": 2)"),
              ElementsAre(::testing::HasSubstr("interleave_moe_layer_step")));
  EXPECT_THAT(found(list + R"("moe_layers_enum": "1,2,3")"), ::testing::IsEmpty());
  EXPECT_THAT(found(list + R"("moe_layers_enum": "2,3")"),
              ElementsAre(::testing::HasSubstr("moe_layers_enum")));
}

TEST(DerivedKeys, NamesThatFamiliesReadApartMustAgree) {
  const auto found = [](const char* text) { return ConfigMeaning(json(text)).contradictions(); };
  for (const char* twin : {"attention_head_dim", "kv_channels"}) {
    EXPECT_THAT(found(fmt::format(R"({{"head_dim": 64, "{}": 128}})", twin).c_str()),
                ElementsAre(::testing::HasSubstr(twin)));
  }
  EXPECT_THAT(found(R"({"sliding_window": 128, "sliding_window_size": 64})"),
              ElementsAre(::testing::HasSubstr("sliding_window_size")));
  EXPECT_THAT(found(R"({"sliding_window": 128, "sliding_window_size": 128})"),
              ::testing::IsEmpty());
  // Only the class of MiMo counts the token itself.
  EXPECT_THAT(found(R"({"sliding_window": 129, "sliding_window_size": 128})"),
              ::testing::SizeIs(1));
  for (const int window : {127, 128, 129, 130}) {
    EXPECT_THAT(found(fmt::format(R"({{"model_type": "mimo_v2_flash", "sliding_window": {},
                                      "sliding_window_size": 128}})",
                                  window)
                          .c_str()),
                ::testing::SizeIs(window == 128 || window == 129 ? 0 : 1))
        << window;
  }
  for (const char* is_on : {"true", "false"}) {
    EXPECT_THAT(found(fmt::format(R"({{"use_sliding_window": {}, "sliding_window": 8,
                                      "layer_types": ["full_attention", "sliding_attention"]}})",
                                  is_on)
                          .c_str()),
                ::testing::SizeIs(*is_on == 't' ? 0 : 1));
  }
  // The classes that read the second key do not read the first.
  EXPECT_THAT(found(R"({"hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh"})"),
              ::testing::IsEmpty());
  EXPECT_THAT(found(R"({"rms_norm_eps": 1e-6, "layernorm_epsilon": 1e-5})"),
              ElementsAre(::testing::HasSubstr("layernorm_epsilon")));
}

TEST(DerivedKeys, AListAndAStepOfLinearLayersMustAgree) {
  const auto found = [](std::string_view step) {
    return ConfigMeaning(json(fmt::format(R"({{"num_hidden_layers": 4, "layer_types":
        ["linear_attention", "full_attention", "linear_attention", "full_attention"], {}}})",
                                          step)))
        .contradictions();
  };
  for (const char* key : {"full_attention_interval", "layer_group_size"}) {
    EXPECT_THAT(found(fmt::format(R"("{}": 2)", key)), ::testing::IsEmpty());
    EXPECT_THAT(found(fmt::format(R"("{}": 4)", key)), ElementsAre(::testing::HasSubstr(key)));
  }
  EXPECT_THAT(found(R"("attn_layer_period": 2, "attn_layer_offset": 1)"), ::testing::IsEmpty());
  EXPECT_THAT(found(R"("attn_layer_period": 2, "attn_layer_offset": 0)"),
              ElementsAre(::testing::HasSubstr("attn_layer_period")));
}

TEST(DerivedKeys, IndexersHaveThreeWords) {
  const auto own = [](const char* text, std::uint64_t layer, bool knows_types = true) {
    return own_indexer(json(text), layer, knows_types).is_own;
  };
  const char* types = R"({"indexer_types": ["shared", "full"], "index_topk_pattern": "FSX"})";
  EXPECT_EQ(own(types, 0), false);
  EXPECT_EQ(own(types, 1), true);
  EXPECT_EQ(own(types, 2), std::nullopt);
  EXPECT_EQ(own(types, 0, false), true);
  EXPECT_EQ(own(types, 1, false), false);
  EXPECT_EQ(own(types, 2, false), std::nullopt);
  EXPECT_EQ(own(R"({"index_topk_freq": 2, "index_skip_topk_offset": 1})", 1), false);
  EXPECT_EQ(own(R"({"index_topk_freq": 2, "index_skip_topk_offset": 1})", 2), true);
  EXPECT_EQ(own(R"({"index_topk_freq": -2})", 0), std::nullopt);
  EXPECT_EQ(own("{}", 9), true);
}

// Tests of inference/model show the model of every saved config to be the released one's.

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

TEST(ReleasedWords, GeluOfGemmaIsByTanh) {
  const auto gate = [](const char* type) {
    return released(fmt::format(R"({{"model_type": "{}", "hidden_act": "gelu"}})", type))
        .at("hidden_act");
  };
  EXPECT_EQ(gate("gemma"), "gelu_pytorch_tanh");
  EXPECT_EQ(gate("nemotron"), "gelu");
}

TEST(ReleasedWords, LayersOfFlintFollowFromTheirNumber) {
  const std::string rest = R"("model_type": "flint", "num_hidden_layers": 8)";
  const char* const full = "full_attention";
  const char* const sliding = "sliding_attention";
  EXPECT_EQ(released("{" + rest + "}").at("layer_types"),
            Json({full, full, sliding, sliding, sliding, full, sliding, full}));
  EXPECT_EQ(released("{" + rest + "}").at("mlp_only_layers"), Json({0, 1}));
  const Json said =
      released(R"({"layer_types": ["full_attention"], "mlp_only_layers": [], )" + rest + "}");
  EXPECT_EQ(said.at("layer_types"), Json({full}));
  EXPECT_EQ(said.at("mlp_only_layers"), Json::array());
}

TEST(ReleasedWords, WidthsAndLayersOfLfm2AreUsualOnes) {
  const std::string rest = R"("model_type": "lfm2", "num_hidden_layers": 3})";
  const Json adjusted = released(R"({"block_ff_dim": 126, "block_auto_adjust_ff_dim": true,
      "block_multiple_of": 10, "block_ffn_dim_multiplier": 1.5, "full_attn_idxs": [1], )" +
                                 rest);
  EXPECT_EQ(adjusted.at("intermediate_size"), 130);
  EXPECT_EQ(adjusted.at("layer_types"), Json({"conv", "full_attention", "conv"}));
  // Once more the words mean the same.
  EXPECT_EQ(released(adjusted.dump()), adjusted);
  EXPECT_EQ(released(R"({"block_ff_dim": 126, )" + rest).at("intermediate_size"), 126);
  EXPECT_EQ(released(R"({"intermediate_size": 300, "block_auto_adjust_ff_dim": true, )" + rest)
                .at("intermediate_size"),
            256);
  EXPECT_EQ(released("{" + rest).at("layer_types"),
            Json({"full_attention", "full_attention", "full_attention"}));
}

TEST(ReleasedWords, WindowsOfQwenAndSmolAreSwitchedOn) {
  const auto types = [](const char* type, const char* rest) {
    return released(
               fmt::format(R"({{"model_type": "{}", "num_hidden_layers": 3, "max_window_layers": 1,
        "sliding_window": 8, {}}})",
                           type, rest))
        .value("layer_types", Json());
  };
  const char* const full = "full_attention";
  const char* const sliding = "sliding_attention";
  const char* const on = R"("use_sliding_window": true)";
  EXPECT_EQ(types("qwen2", on), Json({full, sliding, sliding}));
  EXPECT_EQ(types("qwen3", on), Json({full, sliding, sliding}));
  EXPECT_EQ(types("smollm3", R"("use_sliding_window": true, "no_rope_layer_interval": 2)"),
            Json({full, sliding, full}));
  EXPECT_EQ(types("smollm3", R"("use_sliding_window": true, "no_rope_layers": [0, 1, 1])"),
            Json({sliding, full, full}));
  EXPECT_EQ(types("qwen2_moe", on), Json({sliding, full, full}));
  EXPECT_EQ(types("qwen2", R"("use_sliding_window": false)"), Json());
}

TEST(ReleasedWords, OlmoHybridHasNoPositionsWithoutABase) {
  const auto keys = [](const char* rope) {
    return released(fmt::format(R"({{"model_type": "olmo_hybrid", "rope_parameters": {}}})", rope));
  };
  EXPECT_EQ(keys(R"({"rope_theta": null})").at("has_rope"), false);
  EXPECT_FALSE(keys(R"({"rope_theta": 10000})").contains("has_rope"));
  EXPECT_FALSE(keys("null").contains("has_rope"));
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
  std::vector<TwoSpellings> twice;
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
