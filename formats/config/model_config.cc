#include "formats/config/model_config.h"

#include <algorithm>
#include <initializer_list>

#include <fmt/format.h>

#include "formats/base/error.h"

namespace ingot::formats {
namespace {

constexpr std::uint64_t kMaxCount = std::uint64_t{1} << 20;      // layers, experts
constexpr std::uint64_t kMaxDimension = std::uint64_t{1} << 32;  // widths, vocabulary, positions

/// One object of the document. Every getter takes a missing key and null for "not given"; anything
/// else of the wrong type or range throws kCorrupt with the key's path.
class Section {
 public:
  Section(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
    if (!object.is_object()) {
      throw Error(ErrorCode::kCorrupt, path_.empty() ? std::string("is not a JSON object")
                                                     : fmt::format("'{}' is not an object", path_));
    }
  }

  [[nodiscard]] const Json* find(const char* key) const {
    const auto at = object_.find(key);
    return at == object_.end() || at->is_null() ? nullptr : &*at;
  }
  [[nodiscard]] bool has(const char* key) const { return find(key) != nullptr; }

  [[noreturn]] void refuse(const char* key, std::string_view fact) const {
    throw Error(ErrorCode::kCorrupt,
                fmt::format("'{}{}{}' {}", path_, path_.empty() ? "" : ".", key, fact));
  }

  [[nodiscard]] std::optional<std::uint64_t> whole(const char* key, std::uint64_t max) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    return whole_of(key, *value, max);
  }
  [[nodiscard]] std::uint64_t dimension(const char* key) const {
    return whole(key, kMaxDimension).value_or(0);
  }
  [[nodiscard]] std::uint64_t count(const char* key) const {
    return whole(key, kMaxCount).value_or(0);
  }

  [[nodiscard]] std::optional<double> number(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number()) refuse(key, fmt::format("is a {}, not a number", value->type_name()));
    const auto result = value->get<double>();
    if (result < 0) refuse(key, fmt::format("is {}, less than 0", value->dump()));
    return result;
  }
  [[nodiscard]] std::string text(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr) return {};
    if (!value->is_string()) refuse(key, fmt::format("is a {}, not a string", value->type_name()));
    return value->get<std::string>();
  }
  [[nodiscard]] bool flag(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr) return false;
    if (!value->is_boolean()) {
      refuse(key, fmt::format("is a {}, not true or false", value->type_name()));
    }
    return value->get<bool>();
  }
  /// An array, or null when not given.
  [[nodiscard]] const Json* list(const char* key) const {
    const Json* value = find(key);
    if (value != nullptr && !value->is_array()) {
      refuse(key, fmt::format("is a {}, not a list", value->type_name()));
    }
    return value;
  }
  [[nodiscard]] std::optional<Section> section(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    return Section(*value, path_.empty() ? key : fmt::format("{}.{}", path_, key));
  }

  [[nodiscard]] std::uint64_t whole_of(const char* key, const Json& value,
                                       std::uint64_t max) const {
    if (!value.is_number())
      refuse(key, fmt::format("is a {}, not a whole number", value.type_name()));
    if (value.is_number_float())
      refuse(key, fmt::format("is {}, not a whole number", value.dump()));
    if (!value.is_number_unsigned()) refuse(key, fmt::format("is {}, less than 0", value.dump()));
    const auto result = value.get<std::uint64_t>();
    if (result > max) refuse(key, fmt::format("is {}, at most {} is plausible", result, max));
    return result;
  }

 private:
  const Json& object_;
  std::string path_;
};

/// The number of experts under whichever of its names the family uses; two names must not disagree.
std::uint64_t expert_count(const Section& config) {
  const char* given_by = nullptr;
  std::uint64_t n_experts = 0;
  for (const char* key : {"n_routed_experts", "num_experts", "num_local_experts"}) {
    const std::optional<std::uint64_t> value = config.whole(key, kMaxCount);
    if (!value) continue;
    if (given_by != nullptr && *value != n_experts) {
      config.refuse(key, fmt::format("is {}, but '{}' is {}", *value, given_by, n_experts));
    }
    given_by = key;
    n_experts = *value;
  }
  return n_experts;
}

std::string first_architecture(const Section& config) {
  const Json* list = config.list("architectures");
  if (list == nullptr || list->empty()) return {};
  if (!list->front().is_string()) config.refuse("architectures", "does not hold strings");
  return list->front().get<std::string>();
}

RopeConfig read_rope(const Section& config) {
  RopeConfig rope;
  std::optional<double> theta = config.number("rope_theta");
  const std::optional<Section> scaling =
      config.section(config.has("rope_parameters") ? "rope_parameters" : "rope_scaling");
  if (scaling) {
    if (const auto own = scaling->number("rope_theta")) theta = own;
    // `type` is the older spelling of `rope_type`.
    const std::string type = scaling->text("rope_type");
    const std::string old_type = scaling->text("type");
    if (!type.empty()) {
      rope.type = type;
    } else if (!old_type.empty()) {
      rope.type = old_type;
    }
    rope.factor = scaling->number("factor");
    rope.beta_fast = scaling->number("beta_fast");
    rope.beta_slow = scaling->number("beta_slow");
    rope.mscale = scaling->number("mscale");
    rope.mscale_all_dim = scaling->number("mscale_all_dim");
    rope.original_max_position_embeddings =
        scaling->whole("original_max_position_embeddings", kMaxDimension);
  }
  if (theta == 0.0) config.refuse("rope_theta", "is 0");
  if (theta) rope.theta = *theta;
  return rope;
}

std::optional<QuantizationConfig> read_quantization(const Section& config) {
  const std::optional<Section> section = config.section("quantization_config");
  if (!section) return std::nullopt;
  QuantizationConfig result;
  result.quant_method = section->text("quant_method");
  result.fmt = section->text("fmt");
  result.activation_scheme = section->text("activation_scheme");
  result.scale_fmt = section->text("scale_fmt");
  if (const Json* block = section->list("weight_block_size")) {
    constexpr const char* kKey = "weight_block_size";
    if (block->size() != 2) section->refuse(kKey, "does not hold two numbers");
    const std::uint64_t rows = section->whole_of(kKey, block->front(), kMaxDimension);
    const std::uint64_t cols = section->whole_of(kKey, block->back(), kMaxDimension);
    if (rows == 0 || cols == 0) section->refuse(kKey, "holds a 0");
    result.weight_block_size = {rows, cols};
  }
  return result;
}

/// `n` per-layer entries. Lists that go on over the MTP layers are accepted; those layers are
/// always mixtures.
void check_layer_list(const Section& config, const char* key, const Json& list,
                      const ModelConfig& model) {
  if (list.size() != model.num_hidden_layers &&
      list.size() != model.num_hidden_layers + model.num_nextn_predict_layers) {
    config.refuse(key, fmt::format("holds {} entries, num_hidden_layers is {}", list.size(),
                                   model.num_hidden_layers));
  }
}

/// transformers 5: "dense" or "sparse" per layer.
void read_layer_types(const Section& config, const Json& types, ModelConfig& model) {
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

/// Qwen3: every step-th layer, counted from 1, except those listed.
void read_sparse_step(const Section& config, ModelConfig& model) {
  const std::uint64_t step = config.whole("decoder_sparse_step", kMaxCount).value_or(1);
  if (step == 0) config.refuse("decoder_sparse_step", "is 0");
  for (std::size_t layer = 0; layer < model.layer_is_moe.size(); ++layer) {
    model.layer_is_moe[layer] = (layer + 1) % step == 0;
  }
  const Json* dense = config.list("mlp_only_layers");
  if (dense == nullptr) return;
  for (const Json& entry : *dense) {
    const std::uint64_t layer = config.whole_of("mlp_only_layers", entry, kMaxCount);
    if (layer >= model.num_hidden_layers) {
      config.refuse("mlp_only_layers",
                    fmt::format("names layer {}, there are {}", layer, model.num_hidden_layers));
    }
    model.layer_is_moe[static_cast<std::size_t>(layer)] = false;
  }
}

/// DeepSeek, Kimi, GLM: dense at first, then every n-th layer; or, as a list, a 1 per mixture
/// layer.
void read_dense_prefix(const Section& config, ModelConfig& model) {
  const std::uint64_t n_dense = config.count("first_k_dense_replace");
  constexpr const char* kFrequency = "moe_layer_freq";
  const Json* frequency = config.find(kFrequency);
  if (frequency != nullptr && frequency->is_array()) {
    check_layer_list(config, kFrequency, *frequency, model);
    for (std::size_t layer = 0; layer < model.layer_is_moe.size(); ++layer) {
      model.layer_is_moe[layer] =
          layer >= n_dense && config.whole_of(kFrequency, (*frequency)[layer], 1) == 1;
    }
    return;
  }
  const std::uint64_t every = config.whole(kFrequency, kMaxCount).value_or(1);
  if (every == 0) config.refuse(kFrequency, "is 0");
  for (std::size_t layer = 0; layer < model.layer_is_moe.size(); ++layer) {
    model.layer_is_moe[layer] = layer >= n_dense && layer % every == 0;
  }
}

void read_layer_kinds(const Section& config, ModelConfig& model) {
  model.layer_is_moe.assign(static_cast<std::size_t>(model.num_hidden_layers), false);
  if (const Json* types = config.list("mlp_layer_types")) {
    read_layer_types(config, *types, model);
  } else if (model.n_routed_experts == 0) {
    return;
  } else if (config.has("decoder_sparse_step") || config.has("mlp_only_layers")) {
    read_sparse_step(config, model);
  } else {
    read_dense_prefix(config, model);
  }
}

ModelConfig read_config(const Section& config) {
  ModelConfig model;
  model.model_type = config.text("model_type");
  model.architecture = first_architecture(config);
  model.dtype = config.text(config.has("dtype") ? "dtype" : "torch_dtype");

  model.vocab_size = config.dimension("vocab_size");
  model.hidden_size = config.dimension("hidden_size");
  model.intermediate_size = config.dimension("intermediate_size");
  model.moe_intermediate_size = config.dimension("moe_intermediate_size");
  model.num_hidden_layers = config.count("num_hidden_layers");
  model.num_nextn_predict_layers = config.count("num_nextn_predict_layers");
  model.num_attention_heads = config.dimension("num_attention_heads");
  model.num_key_value_heads =
      config.whole("num_key_value_heads", kMaxDimension).value_or(model.num_attention_heads);
  model.head_dim = config.dimension("head_dim");
  model.n_routed_experts = expert_count(config);
  model.n_shared_experts = config.count("n_shared_experts");
  model.num_experts_per_tok = config.count("num_experts_per_tok");
  model.q_lora_rank = config.dimension("q_lora_rank");
  model.kv_lora_rank = config.dimension("kv_lora_rank");
  model.qk_nope_head_dim = config.dimension("qk_nope_head_dim");
  model.qk_rope_head_dim = config.dimension("qk_rope_head_dim");
  model.v_head_dim = config.dimension("v_head_dim");
  model.index_n_heads = config.dimension("index_n_heads");
  model.index_head_dim = config.dimension("index_head_dim");
  model.index_topk = config.dimension("index_topk");
  model.max_position_embeddings = config.dimension("max_position_embeddings");
  model.rms_norm_eps = config.number("rms_norm_eps").value_or(0.0);
  model.topk_method = config.text("topk_method");
  model.scoring_func = config.text("scoring_func");
  model.tie_word_embeddings = config.flag("tie_word_embeddings");
  model.attention_bias = config.flag("attention_bias");
  model.rope = read_rope(config);
  model.quantization = read_quantization(config);
  read_layer_kinds(config, model);
  return model;
}

}  // namespace

ModelConfig parse_model_config(std::string_view text, std::string_view where) {
  Json document = parse_json(text, where);
  try {
    ModelConfig model = read_config(Section(document, ""));
    model.raw = std::move(document);
    return model;
  } catch (Error& error) {
    error.in_file(where);
    throw;
  }
}

}  // namespace ingot::formats
