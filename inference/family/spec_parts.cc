#include "inference/family/spec_parts.h"

#include <algorithm>

#include "formats/base/error.h"
#include "formats/config/nested_config.h"
#include "formats/config/routing.h"
#include "formats/family/rule_scope.h"
#include "formats/json/json.h"

namespace ingot::inference {

using formats::JsonFields;
using formats::ModelConfig;

void refuse(ErrorCode code, const std::string& message) {
  throw Error(code, message).in_file("config.json");
}

void refuse(const std::string& message) {
  refuse(ErrorCode::kCorrupt, message);
}

std::size_t required(std::uint64_t value, std::string_view key) {
  if (value == 0) refuse(fmt::format("'{}' is missing or 0", key));
  return static_cast<std::size_t>(value);
}

std::size_t of_heads(std::uint64_t value, std::string_view key) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 16;
  if (value > kMost) refuse(fmt::format("'{}' is {}, at most {} is plausible", key, value, kMost));
  return required(value, key);
}

namespace {

RouterSpec router_spec(const ModelConfig& config) {
  required(config.n_routed_experts, "n_routed_experts");
  required(config.num_experts_per_tok, "num_experts_per_tok");
  const formats::Routing routing = formats::read_routing(config);
  RouterSpec router;
  router.experts = routing.experts;
  router.topk = routing.topk;
  router.groups = routing.groups;
  router.topk_groups = routing.topk_groups;
  return router;
}

std::vector<bool> own_indexers(const ModelConfig& config, std::size_t n_layers) {
  std::vector<bool> own;
  for (std::size_t l = 0; l < n_layers; ++l) {
    const auto [key, is_own] = formats::own_indexer(config, l);
    if (!is_own) {
      refuse(fmt::format("'{}' does not say of layer {}, of {} layers, whether it has an indexer",
                         key, l, n_layers));
    }
    own.push_back(*is_own);
  }
  if (!own.empty() && !own[0]) refuse("the first layer shares an indexer, but none is before it");
  return own;
}

}  // namespace

JsonFields spec_fields(const ModelConfig& config) {
  return {formats::text_keys(config), "config.json"};
}

void require_text(const JsonFields& fields, const char* key, std::string_view only) {
  const std::string value = fields.text(key, only);
  if (value == only) return;
  refuse(ErrorCode::kUnsupported,
         fmt::format("'{}' is '{}'; the forward pass knows only '{}'", key, value, only));
}

float routed_scale(const JsonFields& fields) {
  return static_cast<float>(fields.optional_real("routed_scaling_factor", -1e9, 1e9).value_or(1.0));
}

ModelSpec decoder_spec(const ModelConfig& config, std::string_view activation) {
  const JsonFields fields = spec_fields(config);
  if (!config.by_layer.empty()) {
    refuse(ErrorCode::kUnsupported,
           fmt::format("'{}' is not the same in all layers; the forward pass has one",
                       config.by_layer.begin()->first));
  }
  require_text(fields, "hidden_act", activation);
  ModelSpec spec;
  spec.vocab = spec.stored_vocab = required(config.vocab_size, "vocab_size");
  spec.hidden = required(config.hidden_size, "hidden_size");
  spec.layers = required(config.num_hidden_layers, "num_hidden_layers");
  spec.mtp_layers = static_cast<std::size_t>(config.num_nextn_predict_layers);
  spec.dense_intermediate = static_cast<std::size_t>(config.intermediate_size);
  spec.moe_intermediate = static_cast<std::size_t>(config.moe_intermediate_size);
  spec.shared_intermediate =
      static_cast<std::size_t>(config.n_shared_experts) * spec.moe_intermediate;
  spec.max_positions = static_cast<std::size_t>(config.max_position_embeddings);
  const double eps =
      config.rms_norm_eps != 0
          ? config.rms_norm_eps
          : fields.optional_real("layer_norm_epsilon", 0, 1)
                .value_or(fields.optional_real("layernorm_epsilon", 0, 1).value_or(0));
  if (!(eps > 0) || eps > 1) refuse("'rms_norm_eps' is missing or not between 0 and 1");
  spec.norm_eps = static_cast<float>(eps);
  spec.tied_head = config.tie_word_embeddings;
  spec.is_moe = config.layer_is_moe;
  spec.is_moe.resize(spec.layers, false);
  // Layers for multi-token prediction are like the last kind of layer: with experts, if there are
  // any.
  spec.is_moe.resize(spec.layers + spec.mtp_layers, config.n_routed_experts > 0);
  if (std::find(spec.is_moe.begin(), spec.is_moe.end(), true) != spec.is_moe.end()) {
    spec.router = router_spec(config);
    required(config.moe_intermediate_size, "moe_intermediate_size");
  }
  return spec;
}

void add_latent_attention(const ModelConfig& config, ModelSpec& spec, bool has_positions) {
  if (config.attention_bias) {
    refuse(ErrorCode::kUnsupported,
           "'attention_bias' is true; the forward pass knows none in latent attention");
  }
  MlaSpec mla;
  mla.heads = of_heads(config.num_attention_heads, "num_attention_heads");
  mla.q_lora = static_cast<std::size_t>(config.q_lora_rank);
  mla.kv_lora = required(config.kv_lora_rank, "kv_lora_rank");
  mla.nope = of_heads(config.qk_nope_head_dim, "qk_nope_head_dim");
  if (has_positions || config.qk_rope_head_dim != 0)
    mla.rope_dim = of_heads(config.qk_rope_head_dim, "qk_rope_head_dim");
  mla.v = of_heads(config.v_head_dim, "v_head_dim");
  spec.mla = mla;
  if (has_positions) {
    spec.rope = rope_spec(config.rope, mla.rope_dim,
                          spec_fields(config).boolean("rope_interleave", true), rope_bands(config));
  }
  spec.softmax_scale = static_cast<float>(yarn_softmax_factor(config.rope) /
                                          std::sqrt(static_cast<double>(mla.nope + mla.rope_dim)));
}

void add_grouped_attention(const ModelConfig& config, ModelSpec& spec, const GroupedRope& form) {
  GqaSpec gqa;
  gqa.heads = static_cast<std::size_t>(config.num_attention_heads);
  gqa.kv_heads = static_cast<std::size_t>(config.num_key_value_heads);
  gqa.head_dim = static_cast<std::size_t>(config.head_dim);
  constexpr std::size_t kMost = std::size_t{1} << 16;  // so that no product wraps around
  if (gqa.heads == 0 || gqa.kv_heads == 0 || gqa.head_dim == 0 || gqa.heads > kMost ||
      gqa.head_dim > kMost || gqa.heads % gqa.kv_heads != 0) {
    refuse(ErrorCode::kCorrupt, fmt::format("{} heads of {} over {} key heads make no attention",
                                            gqa.heads, gqa.head_dim, gqa.kv_heads));
  }
  gqa.value_dim = gqa.head_dim;
  gqa.biases = config.attention_bias;
  const std::size_t rotated = form.dim.value_or(gqa.head_dim);
  if (rotated > 0) gqa.rope = rope_spec(config.rope, rotated, form.interleaved, rope_bands(config));
  gqa.softmax_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(gqa.head_dim)));
  spec.gqa = gqa;
}

void add_indexer(const ModelConfig& config, bool interleaved, ModelSpec& spec, bool from_input) {
  const JsonFields fields = spec_fields(config);
  IndexerSpec indexer;
  indexer.heads = of_heads(config.index_n_heads, "index_n_heads");
  indexer.head_dim = of_heads(config.index_head_dim, "index_head_dim");
  indexer.topk = required(config.index_topk, "index_topk");
  if (indexer.head_dim < spec.rope.dim) {
    refuse(fmt::format("'index_head_dim' is {}, less than the {} values that are rotated",
                       indexer.head_dim, spec.rope.dim));
  }
  indexer.from_input = from_input;
  if (spec.mla->q_lora == 0 && !from_input) refuse("an indexer needs 'q_lora_rank'");
  indexer.rope = spec.rope;
  indexer.rope.interleaved = fields.boolean("indexer_rope_interleave", interleaved);
  indexer.own = own_indexers(config, spec.layers);
  indexer.own.resize(spec.layers + spec.mtp_layers, true);
  indexer.power_of_two_keys = config.quantization && config.quantization->scale_fmt == "ue8m0";
  spec.indexer = std::move(indexer);
}

std::size_t rotated_dim(const ModelConfig& config, double if_missing) {
  const JsonFields fields = spec_fields(config);
  if (const auto dim = fields.optional_number("rotary_dim", config.head_dim))
    return static_cast<std::size_t>(*dim);
  const auto rope = rope_fields(config);
  const JsonFields& place = rope && rope->find("partial_rotary_factor") != nullptr ? *rope : fields;
  const double part = place.optional_real("partial_rotary_factor", 0, 1).value_or(if_missing);
  return static_cast<std::size_t>(part * static_cast<double>(config.head_dim));
}

void set_biased_router(ModelSpec& spec, const JsonFields& fields, const char* normalizes) {
  if (!spec.router) refuse("'num_experts' is missing or 0");
  spec.router->score = GateScore::kSigmoid;
  spec.router->correction_bias = true;
  spec.router->normalize = fields.boolean(normalizes, true);
  spec.router->scale = routed_scale(fields);
}

std::optional<GrowthSpec> query_growth(const ModelConfig& config) {
  const auto rope = rope_fields(config);
  const auto beta = rope ? rope->optional_real("llama_4_scaling_beta", -1e6, 1e6) : std::nullopt;
  if (!beta) return std::nullopt;
  const std::uint64_t length = config.rope.original_max_position_embeddings.value_or(0);
  return GrowthSpec{
      .beta = static_cast<float>(*beta),
      .length = static_cast<float>(required(length, "original_max_position_embeddings"))};
}

std::vector<bool> rope_layers(const JsonFields& fields, std::size_t n_layers) {
  std::vector<std::uint64_t> flags = fields.optional_numbers("no_rope_layers");
  const std::size_t every =
      required(fields.optional_number("no_rope_layer_interval", kMaxCount).value_or(4),
               "no_rope_layer_interval");
  for (std::size_t l = flags.empty() ? 0 : n_layers; l < n_layers; ++l) {
    flags.push_back((l + 1) % every != 0 ? 1 : 0);
  }
  if (flags.size() != n_layers) {
    refuse(fmt::format("'no_rope_layers' is not a list for {} layers", n_layers));
  }
  std::vector<bool> has_rope;
  for (const std::uint64_t flag : flags) has_rope.push_back(flag != 0);
  return has_rope;
}

void set_softmax_router(ModelSpec& spec) {
  if (!spec.router) refuse("'num_experts' is missing or 0");
  spec.router->score = GateScore::kSoftmax;
  spec.router->normalize = true;
}

void require_one_group(const ModelSpec& spec) {
  if (spec.router && spec.router->groups > 1) {
    refuse(ErrorCode::kUnsupported,
           fmt::format("'n_group' is {}; this family has one group", spec.router->groups));
  }
}

void set_sigmoid_router(const ModelConfig& config, ModelSpec& spec) {
  if (!spec.router) return;
  const JsonFields fields = spec_fields(config);
  require_text(fields, "scoring_func", "sigmoid");
  require_text(fields, "topk_method", "noaux_tc");
  spec.router->score = GateScore::kSigmoid;
  spec.router->correction_bias = true;
  spec.router->normalize = fields.boolean("norm_topk_prob", true);
  spec.router->scale = routed_scale(fields);
}

HyperSpec hyper_spec(const JsonFields& fields, const ModelSpec& spec) {
  HyperSpec hyper{.norm_eps = spec.norm_eps};
  hyper.streams = of_heads(fields.optional_number("hc_mult", 64).value_or(4), "hc_mult");
  hyper.rounds =
      required(fields.optional_number("hc_sinkhorn_iters", 1000).value_or(20), "hc_sinkhorn_iters");
  hyper.eps = static_cast<float>(fields.optional_real("hc_eps", 0, 1).value_or(1e-6));
  return hyper;
}

void leave_out_mtp(ModelSpec& spec) {
  spec.leaves_out_mtp = spec.mtp_layers > 0;
  spec.mtp_layers = 0;
  spec.is_moe.resize(spec.layers);
}

std::optional<JsonFields> rope_fields(const ModelConfig& config) {
  const JsonFields fields = spec_fields(config);
  return fields.optional_child(fields.find("rope_parameters") != nullptr ? "rope_parameters"
                                                                         : "rope_scaling");
}

std::size_t needed(const JsonFields& fields, const char* key, std::uint64_t most) {
  return required(fields.optional_number(key, most).value_or(0), key);
}

}  // namespace ingot::inference
