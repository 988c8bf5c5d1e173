#include <cmath>
#include <string>

#include "formats/json/json_fields.h"
#include "inference/family/spec_parts.h"

// Families all of whose layers have the same attention, of which files cannot say all.

namespace ingot::inference {

using formats::JsonFields;
using formats::ModelConfig;

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
  attention.norms =
      model.fields.boolean("use_qk_norm", true) ? HeadNorm::kPerHead : HeadNorm::kNone;
  attention.norms_after_rope = true;
  model.share(config.shared_intermediate_size);
  set_softmax_router(model);
  return model.with(attention);
}

// LongCat-Flash: two latent attentions and two dense MLPs a layer next to one mixture, whose
// input is that of the first MLP and whose output is added at the end; some experts have no tensors.
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

}  // namespace ingot::inference
