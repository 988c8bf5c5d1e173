#include <string>
#include <vector>

#include "formats/json/json_fields.h"
#include "inference/family/spec_parts.h"

namespace ingot::inference {

using formats::JsonFields;
using formats::ModelConfig;

// DeepSeek-V4 (its configs as released): every layer has a sliding window and a compressed cache,
// of which a row sees all, or the choice of an indexer. Layers with a compressor have other,
// stretched frequencies, without an effect on magnitudes.
ModelSpec deepseek_v4(const ModelConfig& config) {
  Decoder model(config);
  model.leave_out_mtp();
  const JsonFields& fields = model.fields;
  const std::size_t n_layers = model.spec.n_main;
  const std::vector<std::uint64_t> ratios = fields.optional_numbers("compress_ratios");
  if (ratios.size() < n_layers) {
    refuse(fmt::format("'compress_ratios' has {} entries for {} layers", ratios.size(), n_layers));
  }
  CompressedSpec base;
  base.heads = of_heads(config.num_attention_heads, "num_attention_heads");
  base.head_dim = of_heads(config.head_dim, "head_dim");
  base.rope_dim = of_heads(config.qk_rope_head_dim, "qk_rope_head_dim");
  base.q_lora = required(config.q_lora_rank, "q_lora_rank");
  base.out_groups = of_heads(fields.optional_number("o_groups", kMaxCount).value_or(8), "o_groups");
  base.out_lora = needed(fields, "o_lora_rank");
  base.window = needed(fields, "sliding_window");
  if (base.rope_dim >= base.head_dim || base.heads % base.out_groups != 0) {
    refuse(
        fmt::format("{} heads of {} values, of which {} are rotated, in {} groups make no "
                    "attention",
                    base.heads, base.head_dim, base.rope_dim, base.out_groups));
  }
  formats::RopeConfig plain;
  plain.theta = config.rope.theta;
  base.rope = rope_spec(plain, base.rope_dim, /*interleaved=*/true);
  formats::RopeConfig stretched = config.rope;
  stretched.theta = fields.optional_real("compress_rope_theta", 0, 1e12).value_or(160000.0);
  RopeSpec compressed_rope = rope_spec(stretched, base.rope_dim, /*interleaved=*/true);
  compressed_rope.magnitude = 1.0F;
  const auto mixer = [&](std::size_t l) -> BodySpec {
    CompressedSpec layer = base;
    // Short windows overlap and have an indexer, long ones neither.
    constexpr std::uint64_t kShort = 4, kLong = 128;
    if (ratios[l] != 0 && ratios[l] != kShort && ratios[l] != kLong) {
      refuse(
          ErrorCode::kUnsupported,
          fmt::format("'compress_ratios' has {} for layer {}; the forward pass knows 0, {} and {}",
                      ratios[l], l, kShort, kLong));
    }
    if (ratios[l] == 0) return layer;
    layer.compressor = {ratios[l], ratios[l] == kShort};
    layer.rope = compressed_rope;
    if (ratios[l] != kShort) return layer;
    layer.topk = required(config.index_topk, "index_topk");
    layer.index_heads = of_heads(config.index_n_heads, "index_n_heads");
    layer.index_head_dim = of_heads(config.index_head_dim, "index_head_dim");
    if (layer.index_head_dim < base.rope_dim) {
      refuse(fmt::format("'index_head_dim' is {}, less than the {} values that are rotated",
                         layer.index_head_dim, base.rope_dim));
    }
    return layer;
  };

  model.spec.ends.hyper = hyper_spec(fields, model.spec.norm);
  if (const auto limit = fields.optional_real("swiglu_limit", 0, 1e9))
    model.gate({.limit = static_cast<float>(*limit)});
  model.is_moe.assign(n_layers, true);
  RouterSpec& router = model.router("n_routed_experts");
  const std::string score = fields.text("scoring_func", "sqrtsoftplus");
  if (score == "sqrtsoftplus") {
    router.score = GateScore::kSqrtSoftplus;
  } else if (score == "sigmoid" || score == "softmax") {
    router.score = score == "sigmoid" ? GateScore::kSigmoid : GateScore::kSoftmax;
  } else {
    refuse(
        ErrorCode::kUnsupported,
        fmt::format("'scoring_func' is '{}'; this family knows sqrtsoftplus, sigmoid and softmax",
                    score));
  }
  require_text(fields, "topk_method", "noaux_tc");
  if (!fields.boolean("norm_topk_prob", true)) {
    refuse(ErrorCode::kUnsupported,
           "'norm_topk_prob' is false; this family's weights are normalized");
  }
  router.correction_bias = true;
  router.normalize = true;
  router.scale = routed_scale(fields);
  const std::uint64_t n_tables = fields.optional_number("num_hash_layers", kMaxCount).value_or(3);
  ModelSpec spec = model.with(mixer);
  for (std::size_t l = 0; l < n_layers; ++l)
    std::get<MixtureSpec>(spec.layers[l].blocks.back().body).router.has_table = l < n_tables;
  return spec;
}

}  // namespace ingot::inference
