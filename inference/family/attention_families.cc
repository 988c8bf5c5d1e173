#include <cmath>
#include <string>

#include "formats/json/json.h"
#include "formats/json/json_fields.h"
#include "inference/family/spec_parts.h"

// Families all of whose layers have the same attention, over all tokens.

namespace ingot::inference {

using formats::JsonFields;
using formats::ModelConfig;

namespace {

HeadNorm norms_if(bool is_so) {
  return is_so ? HeadNorm::kPerHead : HeadNorm::kNone;
}

void refuse_windows(const JsonFields& fields) {
  const formats::Json* window = fields.find("sliding_window");
  if (window == nullptr || window->is_null()) return;
  refuse(ErrorCode::kUnsupported,
         fmt::format("'sliding_window' is {}; this family's attention is over all tokens",
                     formats::json_text(*window)));
}

}  // namespace

// GLM-4.5 to 4.7: biases of queries, keys and values as the checkpoint has them, rope on half a
// head.
ModelSpec glm4_moe(const ModelConfig& config) {
  ModelSpec spec = decoder_spec(config);
  const JsonFields fields = spec_fields(config);
  add_grouped_attention(config, spec, {.dim = rotated_dim(config, 0.5)});
  spec.gqa->norms = norms_if(fields.boolean("use_qk_norm", false));
  set_biased_router(spec, fields, "norm_topk_prob");
  return spec;
}

ModelSpec solar_open(const ModelConfig& config) {
  ModelSpec spec = decoder_spec(config);
  const JsonFields fields = spec_fields(config);
  add_grouped_attention(config, spec, {.dim = rotated_dim(config)});
  spec.gqa->norms = norms_if(fields.boolean("use_qk_norm", false));
  set_biased_router(spec, fields, "norm_topk_prob");
  return spec;
}

// dots.llm1 calls its sigmoid gate by the name of the method, noaux_tc.
ModelSpec dots1(const ModelConfig& config) {
  ModelSpec spec = decoder_spec(config);
  const JsonFields fields = spec_fields(config);
  refuse_windows(fields);
  add_grouped_attention(config, spec);
  set_biased_router(spec, fields, "norm_topk_prob");
  return spec;
}

// ERNIE 4.5: interleaved rope, a softmax gate with correction bias. Without head_dim the heads
// share the width of the model.
ModelSpec ernie4_5_moe(const ModelConfig& given) {
  ModelConfig config = given;
  if (config.head_dim == 0)
    config.head_dim =
        config.hidden_size / required(config.num_attention_heads, "num_attention_heads");
  ModelSpec spec = decoder_spec(config);
  leave_out_mtp(spec);
  spec.leaves_out_mtp = true;
  const JsonFields fields = spec_fields(config);
  add_grouped_attention(config, spec, {.interleaved = true});
  spec.gqa->norms = HeadNorm::kNone;
  set_softmax_router(spec);
  spec.router->correction_bias = fields.boolean("moe_use_aux_free", true);
  return spec;
}

// Hunyuan A13B: norms behind rope. Its `alpha` stretches rope's base once, whatever the length.
ModelSpec hunyuan_v1_moe(const ModelConfig& config) {
  ModelSpec spec = decoder_spec(config);
  const JsonFields fields = spec_fields(config);
  if (fields.boolean("use_cla", false)) {
    refuse(ErrorCode::kUnsupported, "'use_cla' is true; layers that share keys are not known");
  }
  ModelConfig stretched = config;
  if (const auto scaling = rope_fields(config)) {
    const double alpha = scaling->optional_real("alpha", 0, 1e9).value_or(0);
    if (config.rope.type == "dynamic" && alpha > 0) {
      const auto width = static_cast<double>(of_heads(config.head_dim, "head_dim"));
      if (width <= 2) refuse("'head_dim' is too small for 'alpha' of rope");
      stretched.rope.type = "default";
      stretched.rope.theta *= std::pow(alpha, width / (width - 2));
    }
  }
  add_grouped_attention(stretched, spec);
  spec.gqa->norms = norms_if(fields.boolean("use_qk_norm", true));
  spec.gqa->norms_after_rope = true;
  spec.shared_intermediate = static_cast<std::size_t>(config.shared_intermediate_size);
  set_softmax_router(spec);
  return spec;
}

// MiniMax M2: norms over all heads at once, rope on a part of a head.
ModelSpec minimax_m2(const ModelConfig& config) {
  ModelSpec spec = decoder_spec(config);
  const JsonFields fields = spec_fields(config);
  refuse_windows(fields);
  require_text(fields, "scoring_func", "sigmoid");
  require_text(fields, "qk_norm_type", "per_layer");
  add_grouped_attention(config, spec, {.dim = rotated_dim(config)});
  spec.gqa->norms = fields.boolean("use_qk_norm", true) ? HeadNorm::kAllHeads : HeadNorm::kNone;
  set_biased_router(spec, fields, "norm_topk_prob");
  spec.router->correction_bias = fields.boolean("use_routing_bias", true);
  return spec;
}

// Ministral 3: dense, queries that grow with the position.
ModelSpec ministral3(const ModelConfig& config) {
  ModelSpec spec = decoder_spec(config);
  const JsonFields fields = spec_fields(config);
  add_grouped_attention(config, spec, {.dim = rotated_dim(config)});
  spec.gqa->norms = HeadNorm::kNone;
  spec.gqa->growth = query_growth(config);
  spec.gqa->window =
      static_cast<std::size_t>(fields.optional_number("sliding_window", 1U << 30U).value_or(0));
  return spec;
}

// Mistral 4: latent attention whose queries grow with the position, a softmax gate.
ModelSpec mistral4(const ModelConfig& config) {
  ModelSpec spec = decoder_spec(config);
  const JsonFields fields = spec_fields(config);
  add_latent_attention(config, spec);
  spec.mla->growth = query_growth(config);
  set_softmax_router(spec);
  require_one_group(spec);
  spec.router->normalize = fields.boolean("norm_topk_prob", true);
  spec.router->scale = routed_scale(fields);
  return spec;
}

// LongCat-Flash: a layer has two latent attentions, two dense MLPs and one mixture; some experts
// have no tensors.
ModelSpec longcat_flash(const ModelConfig& config) {
  ModelSpec spec = decoder_spec(config);
  leave_out_mtp(spec);
  spec.leaves_out_mtp = true;  // the names tell, not the config
  const JsonFields fields = spec_fields(config);
  require_text(fields, "attention_method", "MLA");
  require_text(fields, "zero_expert_type", "identity");
  for (const char* key : {"router_bias", "norm_topk_prob"}) {
    if (fields.boolean(key, false)) {
      refuse(ErrorCode::kUnsupported,
             fmt::format("'{}' is true; the forward pass of this family knows only false", key));
    }
  }
  add_latent_attention(config, spec);
  const auto latent_scale = [&](const char* flag, std::size_t width) {
    if (!fields.boolean(flag, true) || width == 0) return 1.0F;
    return static_cast<float>(
        std::sqrt(static_cast<double>(spec.hidden) / static_cast<double>(width)));
  };
  spec.mla->query_latent_scale = latent_scale("mla_scale_q_lora", spec.mla->q_lora);
  spec.mla->key_latent_scale = latent_scale("mla_scale_kv_lora", spec.mla->kv_lora);
  spec.is_twofold = true;
  spec.is_moe.assign(spec.layers, true);
  if (!spec.router) refuse("'n_routed_experts' is missing or 0");
  require_one_group(spec);
  spec.router->score = GateScore::kSoftmax;
  spec.router->correction_bias = true;
  spec.router->scale = routed_scale(fields);
  spec.router->identity_experts =
      static_cast<std::size_t>(fields.optional_number("zero_expert_num", kMaxCount).value_or(0));
  return spec;
}

// A.X K1: DeepSeek-V3 with a norm of a mixture's output.
ModelSpec axk1(const ModelConfig& config) {
  ModelSpec spec = decoder_spec(config);
  add_latent_attention(config, spec);
  set_sigmoid_router(config, spec);
  spec.norms_mixture = true;
  return spec;
}

}  // namespace ingot::inference
