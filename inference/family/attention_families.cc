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
  Decoder model(config);
  GroupedSpec attention = grouped_attention(config, {.dim = rotated_dim(config, 0.5)});
  attention.norms = norms_if(model.fields.boolean("use_qk_norm", false));
  set_biased_router(model, "norm_topk_prob");
  return model.with(attention);
}

ModelSpec solar_open(const ModelConfig& config) {
  Decoder model(config);
  GroupedSpec attention = grouped_attention(config, {.dim = rotated_dim(config)});
  attention.norms = norms_if(model.fields.boolean("use_qk_norm", false));
  set_biased_router(model, "norm_topk_prob");
  return model.with(attention);
}

// dots.llm1 calls its sigmoid gate by the name of the method, noaux_tc.
ModelSpec dots1(const ModelConfig& config) {
  Decoder model(config);
  refuse_windows(model.fields);
  set_biased_router(model, "norm_topk_prob");
  return model.with(grouped_attention(config));
}

// ERNIE 4.5: interleaved rope, a softmax gate with correction bias. Without head_dim the heads
// share the width of the model.
ModelSpec ernie4_5_moe(const ModelConfig& given) {
  ModelConfig config = given;
  if (config.head_dim == 0)
    config.head_dim =
        config.hidden_size / required(config.num_attention_heads, "num_attention_heads");
  Decoder model(config);
  model.leave_out_mtp();
  model.spec.leaves_out_mtp = true;
  GroupedSpec attention = grouped_attention(config, {.interleaved = true});
  attention.norms = HeadNorm::kNone;
  set_softmax_router(model);
  model.router().correction_bias = model.fields.boolean("moe_use_aux_free", true);
  return model.with(attention);
}

// Hunyuan A13B: norms behind rope. Its `alpha` stretches rope's base once, whatever the length.
ModelSpec hunyuan_v1_moe(const ModelConfig& config) {
  Decoder model(config);
  if (model.fields.boolean("use_cla", false)) {
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
  GroupedSpec attention = grouped_attention(stretched);
  attention.norms = norms_if(model.fields.boolean("use_qk_norm", true));
  attention.norms_after_rope = true;
  model.share(config.shared_intermediate_size);
  set_softmax_router(model);
  return model.with(attention);
}

// MiniMax M2: norms over all heads at once, rope on a part of a head.
ModelSpec minimax_m2(const ModelConfig& config) {
  Decoder model(config);
  refuse_windows(model.fields);
  require_text(model.fields, "scoring_func", "sigmoid");
  require_text(model.fields, "qk_norm_type", "per_layer");
  GroupedSpec attention = grouped_attention(config, {.dim = rotated_dim(config)});
  attention.norms =
      model.fields.boolean("use_qk_norm", true) ? HeadNorm::kAllHeads : HeadNorm::kNone;
  set_biased_router(model, "norm_topk_prob");
  model.router().correction_bias = model.fields.boolean("use_routing_bias", true);
  return model.with(attention);
}

// Ministral 3: dense, queries that grow with the position.
ModelSpec ministral3(const ModelConfig& config) {
  Decoder model(config);
  GroupedSpec attention = grouped_attention(config, {.dim = rotated_dim(config)});
  attention.norms = HeadNorm::kNone;
  attention.growth = query_growth(config);
  attention.window = static_cast<std::size_t>(
      model.fields.optional_number("sliding_window", 1U << 30U).value_or(0));
  return model.with(attention);
}

// Mistral 4: latent attention whose queries grow with the position, a softmax gate.
ModelSpec mistral4(const ModelConfig& config) {
  Decoder model(config);
  LatentSpec attention = latent_attention(config);
  attention.growth = query_growth(config);
  set_softmax_router(model);
  require_one_group(model);
  model.router().normalize = model.fields.boolean("norm_topk_prob", true);
  model.router().scale = routed_scale(model.fields);
  return model.with(attention);
}

// LongCat-Flash: two latent attentions and two dense MLPs a layer beside one mixture, which takes
// what the first MLP takes and is added at the end; some experts have no tensors.
ModelSpec longcat_flash(const ModelConfig& config) {
  Decoder model(config);
  model.leave_out_mtp();
  model.spec.leaves_out_mtp = true;  // the names tell, not the config
  const JsonFields& fields = model.fields;
  require_text(fields, "attention_method", "MLA");
  require_text(fields, "zero_expert_type", "identity");
  for (const char* key : {"router_bias", "norm_topk_prob"}) {
    if (fields.boolean(key, false)) {
      refuse(ErrorCode::kUnsupported,
             fmt::format("'{}' is true; the forward pass of this family knows only false", key));
    }
  }
  LatentSpec attention = latent_attention(config);
  const auto latent_scale = [&](const char* flag, std::size_t width) {
    if (!fields.boolean(flag, true) || width == 0) return 1.0F;
    return static_cast<float>(
        std::sqrt(static_cast<double>(model.spec.hidden) / static_cast<double>(width)));
  };
  attention.query_latent_scale = latent_scale("mla_scale_q_lora", attention.q_lora);
  attention.key_latent_scale = latent_scale("mla_scale_kv_lora", attention.kv_lora);
  RouterSpec& router = model.router("n_routed_experts");
  require_one_group(model);
  router.score = GateScore::kSoftmax;
  router.correction_bias = true;
  router.scale = routed_scale(fields);
  router.identity_experts =
      static_cast<std::size_t>(fields.optional_number("zero_expert_num", kMaxCount).value_or(0));
  const LayerSpec layer = {.blocks = {{.body = attention},
                                      {.body = model.dense},
                                      {.body = attention, .number = 1},
                                      {.body = model.dense, .number = 1},
                                      {.body = *model.mixture, .input_of = 1}}};
  model.spec.layers.assign(model.spec.n_main, layer);
  return model.spec;
}

// A.X K1: DeepSeek-V3 with a norm of a mixture's output.
ModelSpec axk1(const ModelConfig& config) {
  Decoder model(config);
  set_sigmoid_router(model);
  ModelSpec spec = model.with(latent_attention(config));
  for (LayerSpec& layer : spec.layers)
    layer.blocks.back().norms_output = layer.find<MixtureSpec>() != nullptr;
  return spec;
}

}  // namespace ingot::inference
