#include <algorithm>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/config/nested_config.h"
#include "formats/dialect/dialect.h"
#include "formats/family/family_yaml.h"
#include "formats/json/json.h"
#include "synth/synth.h"

namespace ingot::formats {
namespace {

using Count = std::optional<std::uint64_t>;

std::uint64_t number_or_zero(const Json& config, const char* key) {
  const auto found = config.find(key);
  return found != config.end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
}

// A family has only some of the keys: none is added that its reference does not have.
void set_where_present(Json& config, std::initializer_list<const char*> keys, std::uint64_t value) {
  for (const char* key : keys) {
    if (config.contains(key) && !config.at(key).is_null()) config[key] = value;
  }
}

bool has_any(const Json& config, std::initializer_list<const char*> keys) {
  return std::any_of(keys.begin(), keys.end(), [&](const char* key) {
    return config.contains(key) && !config.at(key).is_null();
  });
}

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

constexpr const char* kLayersKey = "num_hidden_layers";

std::uint64_t reference_experts(const Json& config) {
  return std::max({number_or_zero(config, "n_routed_experts"),
                   number_or_zero(config, "num_experts"),
                   number_or_zero(config, "num_local_experts")});
}

std::uint64_t reference_dense_layers(const Json& config) {
  if (config.contains("mlp_layer_types")) {
    const Json& types = config.at("mlp_layer_types");
    return static_cast<std::uint64_t>(std::count(types.begin(), types.end(), Json("dense")));
  }
  return number_or_zero(config, "first_k_dense_replace");
}

// Fills in the numbers of the size, where the user gave none.
SynthOptions with_defaults(const SynthOptions& options, const Json& reference) {
  SynthOptions filled = options;
  if (options.size == SynthSize::kHeaders) return filled;
  const bool tiny = options.size == SynthSize::kTiny;
  const auto fill = [](Count& count, std::uint64_t value) { count = count.value_or(value); };

  fill(filled.layers, 2);
  fill(filled.dense_layers, *filled.layers > 1 && reference_dense_layers(reference) != 0 ? 1 : 0);
  fill(filled.mtp_layers,
       std::min<std::uint64_t>(number_or_zero(reference, "num_nextn_predict_layers"), 1));
  fill(filled.experts, std::min<std::uint64_t>(reference_experts(reference), tiny ? 4 : 8));
  fill(filled.vocab, tiny ? 256 : 8192);
  if (tiny) {
    // Without MLA nothing else would have a width that 128 does not divide.
    fill(filled.hidden, has_any(reference, {"kv_lora_rank"}) ? 256 : 288);
    fill(filled.moe_intermediate, 128);
    fill(filled.intermediate, 384);
    fill(filled.heads, 4);
  }
  return filled;
}

// kv_a_proj has 128 + 16 rows: a ragged block, as 512 + 64 is in the real model.
void shrink_attention(Json& config) {
  if (number_or_zero(config, "q_lora_rank") != 0) config["q_lora_rank"] = 128;
  set_where_present(config, {"kv_lora_rank"}, 128);
  set_where_present(config, {"qk_nope_head_dim", "v_head_dim"}, 32);
  set_where_present(config, {"qk_rope_head_dim"}, 16);
  set_where_present(config, {"qk_head_dim"}, 32 + 16);
  set_where_present(config, {"index_n_heads"}, 4);
  set_where_present(config, {"index_topk"}, 64);
  // Under MLA some configs carry a head_dim too; there it is the rotary width.
  set_where_present(config, {"head_dim"}, has_any(config, {"kv_lora_rank"}) ? 16 : 128);
  set_where_present(config, {"max_position_embeddings"}, 1024);
}

void set_layers(Json& config, std::uint64_t layers) {
  const std::uint64_t before = number_or_zero(config, kLayersKey);
  if (layers == 0) refuse("a model needs at least one layer (--layers)");
  config[kLayersKey] = layers;
  // Lists with an entry per layer follow.
  for (Json& value : config) {
    if (!value.is_array() || value.size() != before || before < 2) continue;
    while (value.size() > layers) value.erase(value.size() - 1);
    while (value.size() < layers) value.push_back(Json(value.back()));
  }
}

void set_dense_layers(Json& config, std::uint64_t dense) {
  const std::uint64_t layers = number_or_zero(config, kLayersKey);
  if (dense > layers)
    refuse(fmt::format("{} dense layers do not fit into {} layers", dense, layers));
  bool known = false;
  if (has_any(config, {"first_k_dense_replace"})) {
    config["first_k_dense_replace"] = dense;
    known = true;
  }
  if (has_any(config, {"mlp_only_layers"})) {
    config["mlp_only_layers"] = Json::array();
    for (std::uint64_t layer = 0; layer < dense; ++layer)
      config["mlp_only_layers"].push_back(layer);
    known = true;
  }
  if (has_any(config, {"mlp_layer_types"})) {
    config["mlp_layer_types"] = Json::array();
    for (std::uint64_t layer = 0; layer < layers; ++layer) {
      config["mlp_layer_types"].push_back(layer < dense ? "dense" : "sparse");
    }
    known = true;
  }
  if (!known && dense != 0) refuse("this family has no dense layers (leave --dense-layers out)");
}

void set_experts(Json& config, std::uint64_t experts) {
  if (experts == 0) refuse("a mixture needs at least one expert (--experts)");
  set_where_present(config, {"n_routed_experts", "num_experts", "num_local_experts"}, experts);
  // Routing must still be possible: groups divide the experts and hold two each, and the chosen
  // experts exist.
  if (std::uint64_t groups = number_or_zero(config, "n_group"); groups != 0) {
    groups = std::min(groups, std::max<std::uint64_t>(experts / 2, 1));
    while (experts % groups != 0) --groups;
    config["n_group"] = groups;
    const std::uint64_t chosen =
        std::clamp<std::uint64_t>(number_or_zero(config, "topk_group"), 1, groups);
    set_where_present(config, {"topk_group"}, chosen);
    experts = experts / groups * chosen;
  }
  if (const std::uint64_t per_token = number_or_zero(config, "num_experts_per_tok");
      per_token > experts) {
    config["num_experts_per_tok"] = experts;
  }
}

void set_heads(Json& config, std::uint64_t heads) {
  if (heads == 0) refuse("attention needs at least one head (--heads)");
  const std::uint64_t before =
      std::max<std::uint64_t>(number_or_zero(config, "num_attention_heads"), 1);
  std::uint64_t kv_heads = number_or_zero(config, "num_key_value_heads");
  kv_heads = std::max<std::uint64_t>(heads * kv_heads / before, 1);
  while (heads % kv_heads != 0) --kv_heads;
  set_where_present(config, {"num_attention_heads"}, heads);
  set_where_present(config, {"num_key_value_heads"}, kv_heads);
}

void set_mtp_layers(Json& config, std::uint64_t layers) {
  if (has_any(config, {"num_nextn_predict_layers"})) {
    config["num_nextn_predict_layers"] = layers;
  } else if (layers != 0) {
    refuse("this family has no multi-token prediction layers (leave --mtp-layers out)");
  }
}

/// The block with the modules that loaders must be told to leave plain.
Json with_lists(const Family& family, const Json& config, bool ue8m0) {
  const ModelConfig source =
      config_of(family, parse_model_config(json_text(config), "config.json"));
  std::vector<ExpectedTensor> expected;
  for_each_expected(family, source, false,
                    [&](const ExpectedTensor& tensor) { expected.push_back(tensor); });
  std::vector<WrittenTensor> written;
  for (const ExpectedTensor& tensor : expected) {
    WrittenTensor& one = written.emplace_back();
    one.name = tensor.name;
    one.rule = tensor.rule;
    one.scheme = tensor.rule->fp8_by_default ? SchemeId::kFp8Block : SchemeId::kBf16;
    one.activations = Activations::kDynamic;
  }
  return dialect_of(source).quantization_config(
      {.source = source, .tensors = written, .power_of_two_scales = ue8m0});
}

void set_quantization(Json& config, const SynthOptions& options) {
  const auto& rules = options.family->rules;
  const bool fp8 =
      options.fp8 && std::any_of(rules.begin(), rules.end(),
                                 [](const TensorRule& rule) { return rule.fp8_by_default; });
  if (!fp8) {
    config.erase("quantization_config");
    return;
  }
  if (options.size == SynthSize::kHeaders && !options.ue8m0 &&
      config.contains("quantization_config")) {
    return;  // the released block as it is: there are no scales that could contradict it
  }
  Json block = {{"activation_scheme", "dynamic"}, {"fmt", "e4m3"}, {"quant_method", "fp8"}};
  if (options.ue8m0) block["scale_fmt"] = "ue8m0";
  block["weight_block_size"] = {128, 128};
  config["quantization_config"] = block;
  config["quantization_config"] = with_lists(*options.family, config, options.ue8m0);
}

void set_width(Json& config, const Count& value, std::initializer_list<const char*> keys,
               const char* flag) {
  if (!value) return;
  if (*value == 0) refuse(fmt::format("a width must be positive ({})", flag));
  if (!has_any(config, keys))
    refuse(fmt::format("this family has no such width (leave {} out)", flag));
  set_where_present(config, keys, *value);
}

}  // namespace

std::string synth_config_text(const SynthOptions& options) {
  if (options.family != nullptr && !options.config.empty()) {
    Json config = parse_config(options.config, "config.json");
    set_quantization_block(parse_model_config(options.config, "config.json"), config, nullptr);
    config.erase("auto_map");  // synth writes no code that it could name
    return json_text(config);
  }
  if (options.family == nullptr || options.family->reference_config.empty()) {
    refuse(fmt::format("family {} has no config of its own (give one with --config)",
                       options.family == nullptr ? "" : options.family->name));
  }
  if (options.ue8m0 && !options.fp8) refuse("power-of-two scales need FP8 weights");
  Json config = parse_json(options.family->reference_config, "reference config");
  const SynthOptions filled = with_defaults(options, config);

  if (options.size == SynthSize::kTiny) shrink_attention(config);
  if (filled.layers) set_layers(config, *filled.layers);
  const bool dense_fits =
      number_or_zero(config, "first_k_dense_replace") <= number_or_zero(config, kLayersKey);
  if (filled.dense_layers) {
    set_dense_layers(config, *filled.dense_layers);
  } else if (!dense_fits) {
    set_dense_layers(config, number_or_zero(config, kLayersKey));
  }
  if (filled.mtp_layers) set_mtp_layers(config, *filled.mtp_layers);
  if (filled.experts) set_experts(config, *filled.experts);
  if (filled.heads) set_heads(config, *filled.heads);
  set_width(config, filled.hidden, {"hidden_size"}, "--hidden");
  set_width(config, filled.moe_intermediate, {"moe_intermediate_size"}, "--moe-intermediate");
  set_width(config, filled.intermediate, {"intermediate_size"}, "--intermediate");
  set_width(config, filled.vocab, {"vocab_size"}, "--vocab");
  config["architectures"] = Json::array({options.family->architecture});
  set_quantization(config, options);
  return json_text(config);
}

}  // namespace ingot::formats
