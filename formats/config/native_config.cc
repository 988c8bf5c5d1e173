#include "formats/config/native_config.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/error.h"
#include "formats/config/nested_config.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"

namespace ingot::formats {
namespace {

constexpr double kNormEps = 1e-6;  // fixed in the code

// The file's own keys, where there is a file.
JsonFields fields_of(const ModelConfig& config) {
  static const Json no_keys = Json::object();
  return {text_keys(config).is_object() ? text_keys(config) : no_keys, "config.json"};
}

// Whole values as integers: the code declares some of them so.
Json number(double value) {
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (value == std::floor(value) && std::abs(value) < kExact)
    return static_cast<std::int64_t>(value);
  return value;
}

std::string score_function(const ModelConfig& config) {
  if (!config.scoring_func.empty()) return config.scoring_func;
  // Absent where a family knows one function only.
  return config.model_type == "deepseek_v2" ? "softmax" : "sigmoid";
}

std::uint64_t dense_layers(const ModelConfig& config) {
  const auto first_mixture =
      std::find(config.layer_is_moe.begin(), config.layer_is_moe.end(), true);
  return static_cast<std::uint64_t>(first_mixture - config.layer_is_moe.begin());
}

bool is_yarn(const ModelConfig& config) {
  return config.rope.type == "yarn";
}

void require_computable(const ModelConfig& config) {
  std::vector<std::string> keys;
  const auto n_dense = static_cast<std::ptrdiff_t>(dense_layers(config));
  if (std::find(config.layer_is_moe.begin() + n_dense, config.layer_is_moe.end(), false) !=
      config.layer_is_moe.end()) {
    keys.emplace_back("moe_layer_freq or mlp_layer_types (a dense layer behind a mixture)");
  }
  const RopeConfig& rope = config.rope;
  if (is_yarn(config)) {
    // Unequal ones put a factor on cosine and sine, which the code does not have.
    if (rope.mscale.value_or(0) != rope.mscale_all_dim.value_or(0) || rope.mscale.value_or(0) == 0)
      keys.emplace_back("mscale (differs from mscale_all_dim, or is missing)");
    if (!rope.factor || !rope.original_max_position_embeddings)
      keys.emplace_back("rope_scaling (lacks factor or original_max_position_embeddings)");
  } else if (rope.type != "default") {
    keys.push_back(fmt::format("rope_scaling (of type '{}')", rope.type));
  }
  const std::string score = score_function(config);
  if (score != "sigmoid" && score != "softmax")
    keys.push_back(fmt::format("scoring_func ('{}')", score));
  const bool is_sigmoid = score == "sigmoid";
  if (fields_of(config).boolean("norm_topk_prob", is_sigmoid) != is_sigmoid)
    keys.push_back(fmt::format("norm_topk_prob ({} with {} scores)", !is_sigmoid, score));
  if (config.rms_norm_eps != 0 && config.rms_norm_eps != kNormEps)
    keys.push_back(fmt::format("rms_norm_eps ({})", config.rms_norm_eps));
  if (config.attention_bias) keys.emplace_back("attention_bias (true)");
  if (config.tie_word_embeddings) keys.emplace_back("tie_word_embeddings (true)");
  if (keys.empty()) return;
  throw Error(ErrorCode::kUnsupported,
              "DeepSeek's inference code computes another model than this one, because of {} "
              "(choose another layout)",
              fmt::join(keys, ", "))
      .in_file("config.json");
}

}  // namespace

Json native_config(const ModelConfig& config, bool is_fp8) {
  require_computable(config);
  Json result = Json::object();
  result["vocab_size"] = config.vocab_size;
  result["dim"] = config.hidden_size;
  result["inter_dim"] = config.intermediate_size;
  result["moe_inter_dim"] = config.moe_intermediate_size;
  result["n_layers"] = config.num_hidden_layers;
  result["n_dense_layers"] = dense_layers(config);
  result["n_heads"] = config.num_attention_heads;
  result["n_routed_experts"] = config.n_routed_experts;
  result["n_shared_experts"] = config.n_shared_experts;
  result["n_activated_experts"] = config.num_experts_per_tok;
  const JsonFields keys = fields_of(config);
  const auto groups = [&](const char* key) -> std::uint64_t {
    if (config.topk_method == "greedy") return 1;
    return keys.optional_number(key, JsonFields::kAnyNumber).value_or(1);
  };
  result["n_expert_groups"] = groups("n_group");
  result["n_limited_groups"] = groups("topk_group");
  // The number as the file spells it.
  constexpr const char* kScale = "routed_scaling_factor";
  result["route_scale"] = keys.find(kScale) == nullptr ? Json(1.0) : keys.get(kScale);
  if (!result["route_scale"].is_number()) (void)keys.real(kScale);
  result["score_func"] = score_function(config);
  result["q_lora_rank"] = config.q_lora_rank;
  result["kv_lora_rank"] = config.kv_lora_rank;
  result["qk_nope_head_dim"] = config.qk_nope_head_dim;
  result["qk_rope_head_dim"] = config.qk_rope_head_dim;
  result["v_head_dim"] = config.v_head_dim;
  const RopeConfig& rope = config.rope;
  result["rope_theta"] = number(rope.theta);
  if (is_yarn(config)) {
    result["original_seq_len"] = *rope.original_max_position_embeddings;
    result["rope_factor"] = number(*rope.factor);
    result["beta_fast"] = number(rope.beta_fast.value_or(32));
    result["beta_slow"] = number(rope.beta_slow.value_or(1));
    result["mscale"] = number(*rope.mscale_all_dim);
  } else {
    // The code's defaults are YaRN by 40: a factor of 1 leaves frequencies and scale unchanged.
    result["rope_factor"] = 1;
  }
  result["dtype"] = is_fp8 ? "fp8" : "bf16";
  if (is_fp8 && config.quantization && !config.quantization->scale_fmt.empty())
    result["scale_fmt"] = config.quantization->scale_fmt;
  if (config.index_n_heads > 0) {
    result["index_n_heads"] = config.index_n_heads;
    result["index_head_dim"] = config.index_head_dim;
    result["index_topk"] = config.index_topk;
  }
  return result;
}

}  // namespace ingot::formats
