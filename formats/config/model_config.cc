#include "formats/config/model_config.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "formats/config/derived_keys.h"
#include "formats/config/key_defaults.h"
#include "formats/config/keys.h"
#include "formats/config/nested_config.h"
#include "formats/config/released_words.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"

namespace ingot::formats {
namespace {

/// The product of two numbers below 2^32, layer by layer.
LayerNumber product(const LayerNumber& a, const LayerNumber& b) {
  const auto in = [](const LayerNumber& number, std::size_t i) -> std::uint64_t {
    if (number.by_layer.empty()) return number.largest.value_or(0);
    return i < number.by_layer.size() ? number.by_layer[i] : 0;
  };
  LayerNumber all{.largest = a.largest.value_or(0) * b.largest.value_or(0), .by_layer = {}};
  for (std::size_t i = 0; i < std::max(a.by_layer.size(), b.by_layer.size()); ++i)
    all.by_layer.push_back(in(a, i) * in(b, i));
  if (!all.by_layer.empty()) all.largest = std::ranges::max(all.by_layer);
  return all;
}

/// The number of shared experts where a config does not say it, as the configuration class of the
/// model type has it; 0 for all others.
std::uint64_t unsaid_shared_experts(std::string_view model_type) {
  if (model_type == "ernie4_5_moe") return 2;
  return model_type == "glm4_moe" || model_type == "solar_open" ? 1 : 0;
}

/// The number of experts has several names, which must not disagree.
void require_one_expert_count(const ConfigKeys& keys) {
  const KeyRow& row = *find_key("n_routed_experts");
  const char* first = keys.spelling(row.key());
  for (const std::string& key : row.spellings) {
    const Json *said = keys.fields().find(key.c_str()), *before = keys.fields().find(first);
    if (said != nullptr && *said != *before) {
      keys.fields().refuse(
          key.c_str(), fmt::format("is {}, but '{}' is {}", said->dump(), first, before->dump()));
    }
  }
}

/// Puts a number where ModelConfig has it.
void keep(const std::string& key, LayerNumber number, ModelConfig& model) {
  model.*std::get<std::uint64_t ModelConfig::*>(find_key(key)->field) = number.largest.value_or(0);
  model.by_layer.erase(key);
  if (!number.by_layer.empty()) model.by_layer[key] = std::move(number.by_layer);
}

/// Reads every field that has a row in the table.
void read_fields(const ConfigKeys& keys, ModelConfig& model) {
  for (const KeyRow& row : key_rows()) {
    const std::string& key = row.key();
    if (std::holds_alternative<std::uint64_t ModelConfig::*>(row.field)) {
      keep(key, keys.number(key), model);
    } else if (const auto* real = std::get_if<double ModelConfig::*>(&row.field)) {
      model.** real = keys.real(key).value_or(0);
    } else if (const auto* flag = std::get_if<bool ModelConfig::*>(&row.field)) {
      model.** flag = keys.flag(key);
    } else if (const auto* word = std::get_if<std::string ModelConfig::*>(&row.field)) {
      model.** word = keys.word(key);
    }
  }
}

/// Widths that follow from others where the config does not have them.
void derive_widths(const ConfigKeys& keys, ModelConfig& model) {
  LayerNumber dense = keys.number("intermediate_size");
  LayerNumber of_experts = keys.number("moe_intermediate_size");
  // Llama 4, MiniMax M3 and Inkling call the width of their experts intermediate_size.
  if (LayerNumber own = keys.number("intermediate_size_mlp"); own.largest.value_or(0) != 0)
    of_experts = std::exchange(dense, std::move(own));
  // So do families without dense layers that count num_local_experts: gpt-oss, MiniMax.
  if (keys.find("moe_intermediate_size") == nullptr && of_experts.largest.value_or(0) == 0 &&
      keys.fields().find("num_local_experts") != nullptr)
    of_experts = dense;
  LayerNumber n_shared = keys.number("n_shared_experts");
  if (!n_shared.largest) n_shared.largest = unsaid_shared_experts(model.model_type);
  if (model.shared_intermediate_size == 0)
    keep("shared_intermediate_size", product(n_shared, of_experts), model);
  if (keys.find("num_key_value_heads") == nullptr)
    keep("num_key_value_heads", keys.number("num_attention_heads"), model);
  keep("intermediate_size", std::move(dense), model);
  keep("moe_intermediate_size", std::move(of_experts), model);
  keep("n_shared_experts", std::move(n_shared), model);
}

std::string first_architecture(const ConfigKeys& keys) {
  const Json* list = keys.list("architectures");
  if (list == nullptr || list->empty()) return {};
  if (!list->front().is_string()) keys.refuse("architectures", "does not hold strings");
  return list->front().get<std::string>();
}

RopeConfig read_rope(const ConfigKeys& keys) {
  const auto real = [](const JsonFields& fields, const char* key) {
    return fields.optional_real(key, 0, std::numeric_limits<double>::infinity());
  };
  RopeConfig rope;
  // Where layers differ, theta is that of the first.
  const Json* list = keys.find("rope_theta");
  const bool is_first = list != nullptr && is_per_layer(*list, keys.layers()) && !list->empty() &&
                        list->front().is_number();
  auto theta = is_first ? std::optional(list->front().get<double>()) : keys.real("rope_theta");
  const std::optional<JsonFields> scaling = keys.fields().optional_child(
      keys.find("rope_parameters") != nullptr ? "rope_parameters" : "rope_scaling");
  if (scaling) {
    if (const auto own = real(*scaling, "rope_theta")) theta = own;
    // `type` is the older spelling of `rope_type`.
    for (const char* key : {"type", "rope_type"}) {
      if (std::string type = scaling->text(key, ""); !type.empty()) rope.type = std::move(type);
    }
    if (rope.type == "deepseek_yarn") rope.type = "yarn";  // Sarvam
    // Positions of text alone are turned as by default.
    if (rope.type == "mrope") rope.type = "default";
    rope.factor = real(*scaling, "factor");
    rope.beta_fast = real(*scaling, "beta_fast");
    rope.beta_slow = real(*scaling, "beta_slow");
    rope.mscale = real(*scaling, "mscale");
    rope.mscale_all_dim = real(*scaling, "mscale_all_dim");
    rope.original_max_position_embeddings =
        scaling->optional_number("original_max_position_embeddings", ConfigKeys::kMaxWidth);
  }
  if (theta == 0.0) keys.refuse("rope_theta", "is 0");
  if (theta) rope.theta = *theta;
  return rope;
}

std::optional<QuantizationConfig> read_quantization(const ConfigKeys& keys) {
  std::optional<JsonFields> section = keys.fields().optional_child("quantization_config");
  if (!section) section = keys.fields().optional_child("compression_config");
  if (!section) return std::nullopt;
  QuantizationConfig result;
  result.quant_method = section->text("quant_method", "");
  result.fmt = section->text("fmt", "");
  result.activation_scheme = section->text("activation_scheme", "");
  result.scale_fmt = section->text("scale_fmt", "");
  if (const Json* block = section->optional_array("weight_block_size")) {
    constexpr const char* kKey = "weight_block_size";
    if (block->size() != 2) section->refuse(kKey, "does not hold two numbers");
    const std::uint64_t rows = section->as_number(kKey, block->front(), ConfigKeys::kMaxWidth);
    const std::uint64_t cols = section->as_number(kKey, block->back(), ConfigKeys::kMaxWidth);
    if (rows == 0 || cols == 0) section->refuse(kKey, "holds a 0");
    result.weight_block_size = {rows, cols};
  }
  return result;
}

ModelConfig config_of(const ConfigKeys& keys) {
  ModelConfig model;
  read_fields(keys, model);
  require_one_expert_count(keys);
  derive_widths(keys, model);
  model.architecture = first_architecture(keys);
  model.num_nextn_predict_layers = mtp_layer_count(keys, model.num_hidden_layers);
  model.rope = read_rope(keys);
  model.quantization = read_quantization(keys);
  const LayerCounts layers{.main = model.num_hidden_layers, .mtp = model.num_nextn_predict_layers};
  model.layer_is_moe = mixture_layers(keys, layers, model.n_routed_experts != 0);
  model.layer_is_linear = linear_layers(keys, layers);
  return model;
}

}  // namespace

bool has_nameless_head(const ModelConfig& config) {
  return config.architecture == "Qwen2ForRewardModel" ||
         config.architecture == "Qwen2ForProcessRewardModel";
}

ModelHead head_of(const ModelConfig& config) {
  struct Ending {
    std::string_view text;
    ModelHead head;
  };
  // The first that fits: `ChatModel` and `EmbeddingModel` are no bare models.
  static constexpr std::array kEndings = {
      Ending{"ChatModel", ModelHead::kTokens},
      Ending{"LMHeadModel", ModelHead::kTokens},
      Ending{"Classification", ModelHead::kClasses},
      Ending{"ClassificationModel", ModelHead::kClasses},
      Ending{"RewardModel", ModelHead::kClasses},
      Ending{"RewardModeling", ModelHead::kClasses},
      Ending{"QuestionAnswering", ModelHead::kClasses},
      Ending{"ForTextEncoding", ModelHead::kNone},
      Ending{"ForEmbedding", ModelHead::kNone},
      Ending{"ForRetrieval", ModelHead::kNone},
      Ending{"Model", ModelHead::kNone},
  };
  const auto found = std::ranges::find_if(
      kEndings, [&](const Ending& ending) { return config.architecture.ends_with(ending.text); });
  return found == kEndings.end() ? ModelHead::kTokens : found->head;
}

ModelConfig with_defaults(const ModelConfig& config, const Json& defaults) {
  if (!text_keys(config).is_object()) return config;
  Json keys = text_keys(config);
  if (!add_defaults(defaults, keys)) return config;
  use_released_words(keys);
  ModelConfig full = config_of(ConfigKeys(keys, "config.json"));
  full.model_type = config.model_type;
  full.architecture = config.architecture;
  full.text = config.text;
  full.text.keys = std::move(keys);
  full.raw = config.raw;
  return full;
}

ModelConfig config_of_layers(const ModelConfig& config, std::string_view type) {
  const Json& own = json_member(json_member(text_keys(config), "rope_parameters"), type);
  if (!own.is_object()) return config;
  ModelConfig of_type = config;
  Json keys = text_keys(config);
  keys["rope_parameters"] = Json(own);
  of_type.rope = read_rope(ConfigKeys(keys, "config.json"));
  of_type.text.keys = std::move(keys);
  return of_type;
}

ModelConfig parse_model_config(std::string_view text, std::string_view where) {
  Json document = parse_config(text, where);
  TextNesting nesting = text_nesting(document);
  Json keys = nesting.key.empty() ? document : *nesting.keys;
  if (use_released_words(keys)) nesting.keys = std::move(keys);
  ModelConfig model =
      config_of(ConfigKeys(nesting.keys.is_null() ? document : *nesting.keys, where));
  if (!nesting.key.empty()) {
    const ConfigKeys whole(document, where);
    model.model_type = whole.word("model_type");
    model.architecture = first_architecture(whole);
  }
  model.text = std::move(nesting);
  model.raw = std::move(document);
  return model;
}

}  // namespace ingot::formats
