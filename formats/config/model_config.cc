#include "formats/config/model_config.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/config/key_spellings.h"
#include "formats/config/nested_config.h"
#include "formats/config/released_words.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"
#include "formats/json/python_words.h"

namespace ingot::formats {
namespace {

constexpr std::uint64_t kMaxCount = std::uint64_t{1} << 20;      // layers, experts
constexpr std::uint64_t kMaxDimension = std::uint64_t{1} << 32;  // widths, vocabulary, positions

/// The list under `key` where it has an entry per layer. It may go on over the MTP layers.
const Json* per_layer_list(const JsonFields& config, const char* key) {
  const Json* value = config.find(key);
  if (value == nullptr || !value->is_array() || value->empty()) return nullptr;
  const auto number = [&](const char* of) {
    const Json* found = config.find(of);
    return found == nullptr ? 0 : whole_number(*found, kMaxCount).value_or(0);
  };
  const std::uint64_t n_layers = number("num_hidden_layers");
  std::uint64_t n_mtp = 0;
  for (const char* of : kMtpLayerKeys) n_mtp = n_mtp != 0 ? n_mtp : number(of);
  const bool is_per_layer = value->size() == n_layers || value->size() == n_layers + n_mtp;
  return is_per_layer ? value : nullptr;
}

/// A number, which may be written once per layer.
struct LayerNumber {
  std::optional<std::uint64_t> largest;  ///< nullopt: the config does not have it
  std::vector<std::uint64_t> by_layer;   ///< empty: the same in all

  [[nodiscard]] std::uint64_t in(std::size_t layer) const {
    if (by_layer.empty()) return largest.value_or(0);
    return layer < by_layer.size() ? by_layer[layer] : 0;
  }
};

LayerNumber number_at(const JsonFields& config, const char* key, std::uint64_t max) {
  const Json* list = per_layer_list(config, key);
  if (list == nullptr) return {.largest = config.optional_number(key, max), .by_layer = {}};
  LayerNumber number;
  for (const Json& entry : *list) number.by_layer.push_back(config.as_number(key, entry, max));
  number.largest = std::ranges::max(number.by_layer);
  if (std::ranges::min(number.by_layer) == *number.largest) number.by_layer.clear();
  return number;
}

/// The first spelling that is there.
LayerNumber spelled_number(const JsonFields& config, const char* key, std::uint64_t max) {
  LayerNumber number = number_at(config, key, max);
  for (const std::string_view other : other_spellings(key)) {
    if (number.largest) break;
    if (!other.empty()) number = number_at(config, other.data(), max);
  }
  return number;
}

/// A number that is one for the model.
std::uint64_t count(const JsonFields& config, const char* key) {
  const LayerNumber number = spelled_number(config, key, kMaxCount);
  if (!number.by_layer.empty()) config.refuse(key, "differs between layers, where one is needed");
  return number.largest.value_or(0);
}

/// The product of two numbers below 2^32, layer by layer.
LayerNumber product(const LayerNumber& a, const LayerNumber& b) {
  LayerNumber all{.largest = a.largest.value_or(0) * b.largest.value_or(0), .by_layer = {}};
  for (std::size_t i = 0; i < std::max(a.by_layer.size(), b.by_layer.size()); ++i) {
    const std::uint64_t own = a.in(i);
    all.by_layer.push_back(own * b.in(i));
  }
  if (!all.by_layer.empty()) all.largest = std::ranges::max(all.by_layer);
  return all;
}

/// Writes a number where ModelConfig has it.
void keep(const char* name, LayerNumber number, std::uint64_t& field, ModelConfig& model) {
  field = number.largest.value_or(0);
  if (!number.by_layer.empty()) model.by_layer[name] = std::move(number.by_layer);
}

std::optional<double> real(const JsonFields& config, const char* key) {
  return config.optional_real(key, 0, std::numeric_limits<double>::infinity());
}

/// The number of shared experts that a config means which does not say it, as the configuration
/// class of its model type has it; 0 for all others.
struct UnsaidSharedExperts {
  std::string_view model_type;
  std::uint64_t n_experts;
};
constexpr std::array kUnsaidSharedExperts = {
    UnsaidSharedExperts{"ernie4_5_moe", 2},
    UnsaidSharedExperts{"glm4_moe", 1},
    UnsaidSharedExperts{"solar_open", 1},
};

LayerNumber shared_expert_count(const JsonFields& config, std::string_view model_type) {
  LayerNumber number = spelled_number(config, "n_shared_experts", kMaxCount);
  if (number.largest) return number;
  const auto row =
      std::ranges::find(kUnsaidSharedExperts, model_type, &UnsaidSharedExperts::model_type);
  if (row != kUnsaidSharedExperts.end()) number.largest = row->n_experts;
  return number;
}

/// The number of experts under whichever of its names the family uses; two names must not disagree.
std::uint64_t expert_count(const JsonFields& config) {
  constexpr const char* kUsual = "n_routed_experts";
  const char* given_by = nullptr;
  std::uint64_t n_experts = 0;
  const auto read = [&](const char* key) {
    const LayerNumber number = number_at(config, key, kMaxCount);
    const std::optional<std::uint64_t> value = number.largest;
    if (!value) return;
    // Ranks share experts out alike in all layers.
    if (!number.by_layer.empty())
      config.refuse(key, "differs between layers, and their number of experts is one here");
    if (given_by != nullptr && *value != n_experts) {
      config.refuse(key, fmt::format("is {}, but '{}' is {}", *value, given_by, n_experts));
    }
    given_by = key;
    n_experts = *value;
  };
  read(kUsual);
  for (const std::string_view other : other_spellings(kUsual)) {
    if (!other.empty()) read(other.data());
  }
  return n_experts;
}

std::string first_architecture(const JsonFields& config) {
  const Json* list = config.optional_array("architectures");
  if (list == nullptr || list->empty()) return {};
  if (!list->front().is_string()) config.refuse("architectures", "does not hold strings");
  return list->front().get<std::string>();
}

RopeConfig read_rope(const JsonFields& config) {
  RopeConfig rope;
  // Where layers differ, it is that of the first.
  const Json* list = per_layer_list(config, "rope_theta");
  std::optional<double> theta = list != nullptr && list->front().is_number()
                                    ? std::optional(list->front().get<double>())
                                    : real(config, "rope_theta");
  const std::optional<JsonFields> scaling = config.optional_child(
      config.find("rope_parameters") != nullptr ? "rope_parameters" : "rope_scaling");
  if (scaling) {
    if (const auto own = real(*scaling, "rope_theta")) theta = own;
    // `type` is the older spelling of `rope_type`.
    const std::string type = scaling->text("rope_type", "");
    const std::string old_type = scaling->text("type", "");
    if (!type.empty()) {
      rope.type = type;
    } else if (!old_type.empty()) {
      rope.type = old_type;
    }
    rope.factor = real(*scaling, "factor");
    rope.beta_fast = real(*scaling, "beta_fast");
    rope.beta_slow = real(*scaling, "beta_slow");
    rope.mscale = real(*scaling, "mscale");
    rope.mscale_all_dim = real(*scaling, "mscale_all_dim");
    rope.original_max_position_embeddings =
        scaling->optional_number("original_max_position_embeddings", kMaxDimension);
  }
  if (theta == 0.0) config.refuse("rope_theta", "is 0");
  if (theta) rope.theta = *theta;
  return rope;
}

std::optional<QuantizationConfig> read_quantization(const JsonFields& config) {
  const std::optional<JsonFields> section = config.optional_child("quantization_config");
  if (!section) return std::nullopt;
  QuantizationConfig result;
  result.quant_method = section->text("quant_method", "");
  result.fmt = section->text("fmt", "");
  result.activation_scheme = section->text("activation_scheme", "");
  result.scale_fmt = section->text("scale_fmt", "");
  if (const Json* block = section->optional_array("weight_block_size")) {
    constexpr const char* kKey = "weight_block_size";
    if (block->size() != 2) section->refuse(kKey, "does not hold two numbers");
    const std::uint64_t rows = section->as_number(kKey, block->front(), kMaxDimension);
    const std::uint64_t cols = section->as_number(kKey, block->back(), kMaxDimension);
    if (rows == 0 || cols == 0) section->refuse(kKey, "holds a 0");
    result.weight_block_size = {rows, cols};
  }
  return result;
}

/// Per-layer entries. Lists that go on over the MTP layers are accepted; those layers are
/// always mixtures.
void check_layer_list(const JsonFields& config, const char* key, const Json& list,
                      const ModelConfig& model) {
  if (list.size() != model.num_hidden_layers &&
      list.size() != model.num_hidden_layers + model.num_nextn_predict_layers) {
    config.refuse(key, fmt::format("holds {} entries, num_hidden_layers is {}", list.size(),
                                   model.num_hidden_layers));
  }
}

/// transformers 5: "dense" or "sparse" per layer.
void read_layer_types(const JsonFields& config, const Json& types, ModelConfig& model) {
  constexpr const char* kKey = "mlp_layer_types";
  check_layer_list(config, kKey, types, model);
  for (std::size_t layer = 0; layer < model.layer_is_moe.size(); ++layer) {
    const bool sparse = types[layer] == "sparse";
    if (!sparse && types[layer] != "dense") {
      config.refuse(
          kKey, fmt::format("has an entry for layer {} that is neither dense nor sparse", layer));
    }
    model.layer_is_moe[layer] = sparse;
  }
}

constexpr const char* kLlamaStep = "interleave_moe_layer_step";

/// Qwen3 and Llama 4: every step-th layer, counted from 1, except those listed.
void read_sparse_step(const JsonFields& config, ModelConfig& model) {
  const char* key = config.find(kLlamaStep) != nullptr ? kLlamaStep : "decoder_sparse_step";
  const std::uint64_t step = config.optional_number(key, kMaxCount).value_or(1);
  if (step == 0) config.refuse(key, "is 0");
  for (std::size_t layer = 0; layer < model.layer_is_moe.size(); ++layer) {
    model.layer_is_moe[layer] = (layer + 1) % step == 0;
  }
  const Json* dense = config.optional_array("mlp_only_layers");
  if (dense == nullptr) return;
  for (const Json& entry : *dense) {
    const std::uint64_t layer = config.as_number("mlp_only_layers", entry, kMaxCount);
    if (layer >= model.num_hidden_layers) {
      config.refuse("mlp_only_layers",
                    fmt::format("names layer {}, there are {}", layer, model.num_hidden_layers));
    }
    model.layer_is_moe[static_cast<std::size_t>(layer)] = false;
  }
}

/// DeepSeek, Kimi, GLM: dense at first, then every n-th layer; or, as a list, a 1 per mixture
/// layer.
void read_dense_prefix(const JsonFields& config, ModelConfig& model) {
  const std::uint64_t n_dense = count(config, "first_k_dense_replace");
  constexpr const char* kFrequency = "moe_layer_freq";
  const Json* frequency = config.find(kFrequency);
  if (frequency != nullptr && frequency->is_array()) {
    check_layer_list(config, kFrequency, *frequency, model);
    for (std::size_t layer = 0; layer < model.layer_is_moe.size(); ++layer) {
      model.layer_is_moe[layer] =
          layer >= n_dense && config.as_number(kFrequency, (*frequency)[layer], 1) == 1;
    }
    return;
  }
  const std::uint64_t every = config.optional_number(kFrequency, kMaxCount).value_or(1);
  if (every == 0) config.refuse(kFrequency, "is 0");
  for (std::size_t layer = 0; layer < model.layer_is_moe.size(); ++layer) {
    model.layer_is_moe[layer] = layer >= n_dense && layer % every == 0;
  }
}

constexpr const char* kMoeBegin = "moe_layer_start_index";

/// ERNIE: from one layer to another, every n-th counted from 1.
void read_moe_range(const JsonFields& config, ModelConfig& model) {
  const std::uint64_t begin = count(config, kMoeBegin);
  const Json* last = config.find("moe_layer_end_index");
  const std::uint64_t end = last == nullptr || *last == -1
                                ? model.num_hidden_layers
                                : count(config, "moe_layer_end_index") + 1;
  const std::uint64_t every = config.optional_number("moe_layer_interval", kMaxCount).value_or(1);
  if (every == 0) config.refuse("moe_layer_interval", "is 0");
  for (std::size_t layer = 0; layer < model.layer_is_moe.size(); ++layer)
    model.layer_is_moe[layer] = layer >= begin && layer < end && (layer + 1) % every == 0;
}

constexpr const char* kMoeList = "moe_layers_enum";

/// Step: their numbers, in one text. MTP layers are dense unless they are among them.
void read_moe_list(const JsonFields& config, ModelConfig& model) {
  model.layer_is_moe.resize(model.num_hidden_layers + model.num_nextn_predict_layers);
  const std::string text = config.text(kMoeList);
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view entry = rest.substr(0, comma);
    std::uint64_t layer = 0;
    const auto [end, failure] = std::from_chars(entry.data(), entry.data() + entry.size(), layer);
    if (failure != std::errc() || end != entry.data() + entry.size())
      config.refuse(kMoeList, "is no list of layers");
    if (layer < model.layer_is_moe.size())
      model.layer_is_moe[static_cast<std::size_t>(layer)] = true;
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
}

constexpr const char* kHybridPattern = "hybrid_override_pattern";

/// Nemotron-H: a step of prediction is several layers, a letter each.
std::uint64_t layers_of_mtp_step(const JsonFields& config) {
  constexpr const char* kKey = "mtp_hybrid_override_pattern";
  const std::size_t n = config.optional_text(kKey).value_or("").size();
  if (n > kMaxCount) config.refuse(kKey, "is beyond any model");
  return std::max<std::size_t>(n, 1);
}

/// Nemotron-H: a letter per layer, E for experts.
void read_hybrid_pattern(const JsonFields& config, ModelConfig& model) {
  const std::string pattern = config.text(kHybridPattern);
  if (pattern.size() < model.layer_is_moe.size()) {
    config.refuse(kHybridPattern, fmt::format("has {} letters, num_hidden_layers is {}",
                                              pattern.size(), model.num_hidden_layers));
  }
  for (std::size_t layer = 0; layer < model.layer_is_moe.size(); ++layer)
    model.layer_is_moe[layer] = pattern[layer] == 'E';
}

void read_layer_kinds(const JsonFields& config, ModelConfig& model) {
  model.layer_is_moe.assign(static_cast<std::size_t>(model.num_hidden_layers), false);
  if (const Json* types = config.optional_array("mlp_layer_types")) {
    read_layer_types(config, *types, model);
  } else if (model.n_routed_experts == 0) {
    return;
  } else if (config.find("decoder_sparse_step") != nullptr ||
             config.find("mlp_only_layers") != nullptr || config.find(kLlamaStep) != nullptr) {
    read_sparse_step(config, model);
  } else if (config.find(kHybridPattern) != nullptr) {
    read_hybrid_pattern(config, model);
  } else if (config.find(kMoeList) != nullptr) {
    read_moe_list(config, model);
  } else if (config.find(kMoeBegin) != nullptr) {
    read_moe_range(config, model);
  } else {
    read_dense_prefix(config, model);
  }
}

/// Attention may be linear in all but every n-th layer: Qwen3-Next, Qwen3.5, Ling.
void read_linear_layers(const JsonFields& config, ModelConfig& model) {
  const auto n_layers = static_cast<std::size_t>(model.num_hidden_layers);
  const Json* types = config.find("layer_types");
  const bool is_listed = types != nullptr && types->is_array() &&
                         std::ranges::find(*types, Json("linear_attention")) != types->end();
  const char* key =
      config.find("layer_group_size") != nullptr ? "layer_group_size" : "full_attention_interval";
  const std::optional<std::uint64_t> given = config.optional_number(key, kMaxCount);
  if (is_listed) {
    check_layer_list(config, "layer_types", *types, model);
    for (std::size_t layer = 0; layer < n_layers; ++layer)
      model.layer_is_linear.push_back((*types)[layer] == "linear_attention");
    return;
  }
  if (!given && model.linear_num_value_heads == 0) return;
  model.layer_is_linear.assign(n_layers, false);
  if (types != nullptr) return;
  const std::uint64_t every = given.value_or(4);
  if (every == 0) config.refuse(key, "is 0");
  // Ling's layers behind its last whole group have full attention.
  const std::uint64_t end = std::string_view(key) == "layer_group_size"
                                ? model.num_hidden_layers / every * every
                                : model.num_hidden_layers;
  for (std::size_t layer = 0; layer < n_layers; ++layer)
    model.layer_is_linear[layer] = layer < end && (layer + 1) % every != 0;
}

/// Widths that nothing else says.
struct Dimension {
  const char* key;
  std::uint64_t ModelConfig::*field;
};
constexpr std::array kDimensions = {
    Dimension{"vocab_size", &ModelConfig::vocab_size},
    Dimension{"hidden_size", &ModelConfig::hidden_size},
    Dimension{"num_attention_heads", &ModelConfig::num_attention_heads},
    Dimension{"head_dim", &ModelConfig::head_dim},
    Dimension{"q_lora_rank", &ModelConfig::q_lora_rank},
    Dimension{"kv_lora_rank", &ModelConfig::kv_lora_rank},
    Dimension{"qk_nope_head_dim", &ModelConfig::qk_nope_head_dim},
    Dimension{"qk_rope_head_dim", &ModelConfig::qk_rope_head_dim},
    Dimension{"v_head_dim", &ModelConfig::v_head_dim},
    Dimension{"index_n_heads", &ModelConfig::index_n_heads},
    Dimension{"index_head_dim", &ModelConfig::index_head_dim},
    Dimension{"index_topk", &ModelConfig::index_topk},
    Dimension{"linear_num_key_heads", &ModelConfig::linear_num_key_heads},
    Dimension{"linear_num_value_heads", &ModelConfig::linear_num_value_heads},
    Dimension{"linear_key_head_dim", &ModelConfig::linear_key_head_dim},
    Dimension{"linear_value_head_dim", &ModelConfig::linear_value_head_dim},
    Dimension{"max_position_embeddings", &ModelConfig::max_position_embeddings},
};

ModelConfig read_config(const JsonFields& config) {
  ModelConfig model;
  model.model_type = config.text("model_type", "");
  model.architecture = first_architecture(config);
  model.dtype = config.text(config.find("dtype") != nullptr ? "dtype" : "torch_dtype", "");

  const auto dimension = [&](const char* key) {
    return spelled_number(config, key, kMaxDimension);
  };
  for (const Dimension& row : kDimensions)
    keep(row.key, dimension(row.key), model.*row.field, model);
  LayerNumber dense = dimension("intermediate_size");
  LayerNumber of_experts = dimension("moe_intermediate_size");
  // Llama 4, MiniMax M3 and Inkling call the width of their experts intermediate_size.
  for (const char* key : {"intermediate_size_mlp", "dense_intermediate_size"}) {
    if (LayerNumber own = dimension(key); own.largest.value_or(0) != 0)
      of_experts = std::exchange(dense, std::move(own));
  }
  // So do families without dense layers that count num_local_experts: gpt-oss, MiniMax.
  if (config.find("moe_intermediate_size") == nullptr &&
      config.find("num_local_experts") != nullptr && of_experts.largest.value_or(0) == 0)
    of_experts = dense;
  LayerNumber n_shared = shared_expert_count(config, model.model_type);
  LayerNumber of_shared = dimension("shared_expert_intermediate_size");
  if (of_shared.largest.value_or(0) == 0) of_shared = product(n_shared, of_experts);
  LayerNumber kv_heads = dimension("num_key_value_heads");
  if (!kv_heads.largest) kv_heads = dimension("num_attention_heads");
  keep("intermediate_size", std::move(dense), model.intermediate_size, model);
  keep("moe_intermediate_size", std::move(of_experts), model.moe_intermediate_size, model);
  keep("n_shared_experts", std::move(n_shared), model.n_shared_experts, model);
  keep("shared_intermediate_size", std::move(of_shared), model.shared_intermediate_size, model);
  keep("num_key_value_heads", std::move(kv_heads), model.num_key_value_heads, model);
  keep("num_experts_per_tok", spelled_number(config, "num_experts_per_tok", kMaxCount),
       model.num_experts_per_tok, model);
  model.num_hidden_layers = count(config, "num_hidden_layers");
  for (const char* key : kMtpLayerKeys) {
    if (config.find(key) == nullptr) continue;
    model.num_nextn_predict_layers = count(config, key);
    break;
  }
  model.num_nextn_predict_layers *= layers_of_mtp_step(config);
  if (model.num_nextn_predict_layers > kMaxCount)
    config.refuse(kMtpLayerKeys.front(), "is beyond any model");
  // DeepSeek V4 with DSpark says 1 and has more, over which its list of layers goes on.
  if (const Json* ratios = config.optional_array("compress_ratios");
      ratios != nullptr && ratios->size() > model.num_hidden_layers) {
    const std::uint64_t n_drafts = ratios->size() - model.num_hidden_layers;
    if (n_drafts > kMaxCount) {
      throw Error(
          ErrorCode::kLimit,
          fmt::format("'compress_ratios' has {} entries more than there are layers", n_drafts))
          .in_file("config.json");
    }
    model.num_nextn_predict_layers = std::max(model.num_nextn_predict_layers, n_drafts);
  }
  model.n_routed_experts = expert_count(config);
  model.rms_norm_eps = real(config, "rms_norm_eps").value_or(0.0);
  model.topk_method = config.text("topk_method", "");
  model.scoring_func = config.text("scoring_func", "");
  model.tie_word_embeddings = config.boolean("tie_word_embeddings", false);
  model.attention_bias = config.boolean("attention_bias", false);
  model.rope = read_rope(config);
  model.quantization = read_quantization(config);
  read_layer_kinds(config, model);
  read_linear_layers(config, model);
  return model;
}

}  // namespace

ModelConfig parse_model_config(std::string_view text, std::string_view where) {
  Json document = parse_python_json(text, where);
  TextNesting nesting = text_nesting(document);
  Json keys = nesting.key.empty() ? document : *nesting.keys;
  if (use_released_words(keys)) nesting.keys = std::move(keys);
  ModelConfig model =
      read_config(JsonFields(nesting.keys.is_null() ? document : *nesting.keys, where));
  if (!nesting.key.empty()) {
    const JsonFields whole(document, where);
    model.model_type = whole.text("model_type", "");
    model.architecture = first_architecture(whole);
  }
  model.text = std::move(nesting);
  model.raw = std::move(document);
  return model;
}

}  // namespace ingot::formats
