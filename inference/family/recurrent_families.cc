#include <cmath>
#include <string>
#include <vector>

#include "formats/json/json.h"
#include "formats/json/json_fields.h"
#include "inference/family/spec_parts.h"

// Families whose layers, or most of them, have a recurrent mixer.

namespace ingot::inference {

using formats::JsonFields;
using formats::ModelConfig;

namespace {

constexpr std::size_t kMostKernel = 64;

std::size_t kernel_of(const JsonFields& fields, const char* key) {
  return needed(fields, key, kMostKernel);
}

// Linear layers have one mixer, the others another.
ModelSpec mixed(Decoder& model, const std::vector<bool>& is_linear, const BodySpec& linear,
                const BodySpec& full) {
  if (is_linear.size() != model.spec.n_main) {
    refuse(
        fmt::format("which of the {} layers have linear attention is not said", model.spec.n_main));
  }
  return model.with([&](std::size_t l) { return is_linear[l] ? linear : full; });
}

// Qwen3-Next and Qwen3.5: gated delta nets, and grouped-query attention whose output has a gate, in
// every n-th layer. Norms of hidden states, queries and keys add one to their weights; a part of a
// head is rotated; a shared expert has a gate of its own.
ModelSpec gated_delta_nets(const ModelConfig& config, bool normalizes) {
  Decoder model(config);
  model.leave_out_mtp();
  model.spec.leaves_out_mtp = true;  // the names tell, not every config
  GroupedSpec attention = grouped_attention(config, {.dim = rotated_dim(config, 0.25)});
  attention.output_gate = model.fields.boolean("attn_output_gate", true);
  model.spec.norm.adds = 1;
  model.share(config.shared_intermediate_size);

  DeltaNetSpec net;
  net.key_heads = of_heads(config.linear_num_key_heads, "linear_num_key_heads");
  net.value_heads = of_heads(config.linear_num_value_heads, "linear_num_value_heads");
  net.key_dim = of_heads(config.linear_key_head_dim, "linear_key_head_dim");
  net.value_dim = of_heads(config.linear_value_head_dim, "linear_value_head_dim");
  net.kernel = kernel_of(model.fields, "linear_conv_kernel_dim");
  net.silu_gate = true;
  if (net.value_heads % net.key_heads != 0) {
    refuse(fmt::format("{} value heads over {} key heads make no linear attention", net.value_heads,
                       net.key_heads));
  }
  RouterSpec& router = model.router();
  router.groups = router.topk_groups = 1;
  router.score = GateScore::kSoftmax;
  router.normalize = normalizes;
  return mixed(model, config.layer_is_linear, net, attention);
}

// Kimi Delta Attention: one size of heads, a decay per key.
DeltaNetSpec kimi_delta(std::size_t heads, std::size_t width, std::size_t kernel) {
  return {.key_heads = heads,
          .value_heads = heads,
          .key_dim = width,
          .value_dim = width,
          .kernel = kernel,
          .decay_per_key = true};
}

}  // namespace

ModelSpec qwen3_next(const ModelConfig& config) {
  return gated_delta_nets(config, spec_fields(config).boolean("norm_topk_prob", true));
}

ModelSpec qwen3_5_moe(const ModelConfig& config) {
  return gated_delta_nets(config, true);
}

// Kimi Linear: Kimi Delta Attention, and latent attention without positions in listed layers. The
// lists count from 1.
ModelSpec kimi_linear(const ModelConfig& config) {
  Decoder model(config);
  model.leave_out_mtp();
  const JsonFields& fields = model.fields;
  const std::size_t n_layers = model.spec.n_main;
  if (!fields.boolean("mla_use_nope", true)) {
    refuse(ErrorCode::kUnsupported,
           "'mla_use_nope' is false; this family's latent attention has "
           "no positions");
  }
  const JsonFields linear = fields.child("linear_attn_config");
  std::vector<bool> is_linear(n_layers);
  for (const std::uint64_t layer : linear.numbers("kda_layers")) {
    if (layer == 0 || layer > n_layers) {
      refuse(fmt::format("'linear_attn_config.kda_layers' has {}, of {} layers", layer, n_layers));
    }
    is_linear[layer - 1] = true;
  }
  require_text(fields, "moe_router_activation_func", "sigmoid");
  set_biased_router(model, "moe_renormalize");
  const std::size_t groups = fields.optional_number("num_expert_group", kMaxCount).value_or(1);
  if (groups > 1) {
    refuse(ErrorCode::kUnsupported,
           fmt::format("'num_expert_group' is {}; this family has one group", groups));
  }
  return mixed(
      model, is_linear,
      kimi_delta(of_heads(linear.number("num_heads", kMaxCount), "linear_attn_config.num_heads"),
                 of_heads(linear.number("head_dim", kMaxCount), "linear_attn_config.head_dim"),
                 kernel_of(linear, "short_conv_kernel_size")),
      latent_attention(config, /*has_positions=*/false));
}

// Ling 3: Kimi Delta Attention, and in every n-th layer latent attention with a gate per head.
ModelSpec bailing_hybrid(const ModelConfig& config) {
  Decoder model(config);
  model.leave_out_mtp();
  const JsonFields& fields = model.fields;
  LatentSpec attention = latent_attention(config);
  attention.head_gate = true;
  DeltaNetSpec net = kimi_delta(of_heads(config.num_attention_heads, "num_attention_heads"),
                                of_heads(config.head_dim, "head_dim"),
                                kernel_of(fields, "short_conv_kernel_size"));
  if (fields.boolean("kda_safe_gate", true)) {
    net.decay = Decay::kSigmoid;
    net.decay_floor =
        static_cast<float>(fields.optional_real("kda_lower_bound", -1e6, 0).value_or(-5));
  }
  require_text(fields, "score_function", "sigmoid");
  set_biased_router(model, "norm_topk_prob");
  model.router().correction_bias = fields.boolean("moe_router_enable_expert_bias", true);
  return mixed(model, config.layer_is_linear, net, attention);
}

// GLM-5.3-Flash: Kimi Delta Attention, and in listed layers latent attention without positions,
// whose indexer chooses pools of tokens; hyper-connections whose streams are averaged at the end.
ModelSpec glm5_next(const ModelConfig& config) {
  Decoder model(config);
  model.leave_out_mtp();
  const JsonFields& fields = model.fields;
  if (config.qk_rope_head_dim != 0) {
    refuse(ErrorCode::kUnsupported,
           fmt::format("'qk_rope_head_dim' is {}; this family's latent attention has no positions",
                       config.qk_rope_head_dim));
  }
  LatentSpec attention = latent_attention(config, /*has_positions=*/false);
  attention.latent_norm_eps = model.spec.norm.eps;
  IndexerSpec indexer = lightning_indexer(config, attention, /*interleaved=*/true);
  indexer.pool = needed(fields, "index_kpool", 1 << 16);
  if (indexer.topk % indexer.pool != 0) {
    refuse(fmt::format("'index_topk' is {}, no multiple of the {} tokens of a pool", indexer.topk,
                       indexer.pool));
  }
  if (!fields.boolean("index_kpool_always_select_tail", true)) {
    refuse(ErrorCode::kUnsupported,
           "'index_kpool_always_select_tail' is false; the forward pass knows only true");
  }
  const JsonFields linear = fields.child("linear_attn_config");
  DeltaNetSpec net =
      kimi_delta(of_heads(linear.number("num_heads", kMaxCount), "linear_attn_config.num_heads"),
                 of_heads(linear.number("head_dim", kMaxCount), "linear_attn_config.head_dim"),
                 kernel_of(linear, "short_conv_kernel_size"));
  const auto floor = linear.optional_real("gate_lower_bound", -1e6, 0);
  if (floor || linear.boolean("safe_gate", true)) {
    net.decay = Decay::kSigmoid;
    net.decay_floor = static_cast<float>(floor.value_or(-5));
  }
  model.spec.ends.hyper = hyper_spec(fields, model.spec.norm);
  model.spec.ends.hyper->learned_head = false;
  if (const auto limit = fields.optional_real("swiglu_limit", 0, 1e9))
    model.gate({.limit = static_cast<float>(*limit)});
  set_sigmoid_router(model);
  ModelSpec spec = mixed(model, config.layer_is_linear, net, attention);
  for (std::size_t l = 0; l < spec.n_main; ++l) {
    BodySpec& mixer = spec.layers[l].blocks.front().body;
    if (std::holds_alternative<LatentSpec>(mixer))
      mixer = with_indexer(config, attention, indexer, l);
  }
  return spec;
}

// Nemotron-H: one mixer or one feed-forward part a layer. Experts have no gate, attention no norms
// and no positions.
ModelSpec nemotron_h(const ModelConfig& config) {
  Decoder model(config);
  model.leave_out_mtp();
  const JsonFields& fields = model.fields;
  const std::size_t n_layers = model.spec.n_main;
  require_text(fields, "mlp_hidden_act", "relu2");
  require_text(fields, "mamba_hidden_act", "silu");
  for (const char* key : {"mlp_bias", "moe_latent_size", "sliding_window"}) {
    const formats::Json* value = fields.find(key);
    if (value == nullptr || value->is_null() || *value == false || *value == 0) continue;
    refuse(ErrorCode::kUnsupported,
           fmt::format("'{}' is {}; the forward pass knows none", key, formats::json_text(*value)));
  }
  GroupedSpec attention = grouped_attention(config, {.dim = 0});
  attention.norms = HeadNorm::kNone;
  model.share(config.shared_intermediate_size);
  model.dense.has_gate = false;
  if (model.mixture) model.mixture->expert.has_gate = false;
  if (model.mixture && model.mixture->shared) model.mixture->shared->has_gate = false;

  StateSpaceSpec space;
  space.heads = of_heads(needed(fields, "mamba_num_heads"), "mamba_num_heads");
  space.head_dim = of_heads(needed(fields, "mamba_head_dim"), "mamba_head_dim");
  space.groups = of_heads(needed(fields, "n_groups"), "n_groups");
  space.state = of_heads(needed(fields, "ssm_state_size"), "ssm_state_size");
  space.kernel = kernel_of(fields, "conv_kernel");
  space.least_step =
      static_cast<float>(fields.optional_real("time_step_min", 0, 1e6).value_or(0.001));
  space.convolution_bias = fields.boolean("use_conv_bias", true);
  space.projection_bias = fields.boolean("use_bias", false);
  if (space.heads % space.groups != 0) {
    refuse(fmt::format("{} heads in {} groups make no state space", space.heads, space.groups));
  }
  const std::string kinds = fields.text("hybrid_override_pattern");
  if (kinds.size() != n_layers) {
    refuse(fmt::format("'hybrid_override_pattern' tells of {} layers, there are {}", kinds.size(),
                       n_layers));
  }
  if (kinds.find('E') != std::string::npos) set_biased_router(model, "norm_topk_prob");
  for (std::size_t l = 0; l < n_layers; ++l) {
    BodySpec body;
    if (kinds[l] == 'E') {
      body = *model.mixture;
    } else if (kinds[l] == '-') {
      body = model.dense;
    } else if (kinds[l] == 'M') {
      body = space;
    } else if (kinds[l] == '*') {
      body = attention;
    } else {
      refuse(ErrorCode::kUnsupported,
             fmt::format("layer {} is of kind '{}', which the forward pass does not know", l,
                         kinds[l]));
    }
    model.spec.layers.push_back({.blocks = {{.body = body}}});
  }
  return model.spec;
}

}  // namespace ingot::inference
