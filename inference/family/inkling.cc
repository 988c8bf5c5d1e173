#include <algorithm>
#include <vector>

#include "formats/json/json.h"
#include "formats/json/json_fields.h"
#include "inference/family/spec_parts.h"

namespace ingot::inference {

using formats::JsonFields;
using formats::ModelConfig;

// Inkling: logits by distance in place of rope, short convolutions over keys, values and outputs;
// local layers have heads of their own. The router weighs shared experts too.
ModelSpec inkling(const ModelConfig& config) {
  Decoder model(config);
  model.leave_out_mtp();
  const JsonFields& fields = model.fields;
  model.spec.ends.norms_embedding = true;
  model.spec.ends.logit_divisor = static_cast<float>(
      fields.optional_real("logits_mup_width_multiplier", 1e-6, 1e6).value_or(24));
  if (const auto unpadded = fields.optional_number("unpadded_vocab_size", model.spec.stored_vocab))
    model.spec.vocab = required(*unpadded, "unpadded_vocab_size");
  const bool is_saved = fields.find("conv_kernel_size") != nullptr;
  const std::size_t kernel = of_heads(
      fields.optional_number(is_saved ? "conv_kernel_size" : "sconv_kernel_size", kMaxCount)
          .value_or(4),
      "sconv_kernel_size");
  if (kernel < 2) refuse("'sconv_kernel_size' is 1, which convolves nothing");

  GroupedSpec whole = grouped_attention(config, {.dim = 0});
  const auto own = [&](const char* key, std::size_t usual) {
    return of_heads(fields.optional_number(key, kMaxCount).value_or(usual), key);
  };
  const auto scale = [](GroupedSpec& spec) {
    spec.softmax_scale = 1.0F / static_cast<float>(spec.head_dim);
  };
  const std::size_t values = of_heads(needed(fields, "d_rel"), "d_rel");
  GroupedSpec local = whole;
  local.heads = own("swa_num_attention_heads", whole.heads);
  local.kv_heads = own("swa_num_key_value_heads", whole.kv_heads);
  local.head_dim = local.value_dim = own("swa_head_dim", whole.head_dim);
  if (local.heads % local.kv_heads != 0)
    refuse(
        fmt::format("{} heads over {} key heads make no attention", local.heads, local.kv_heads));
  local.window = needed(fields, "sliding_window_size", kMaxCount);
  local.distances = {.values = values, .extent = local.window};
  scale(local);
  whole.distances = {.values = values, .extent = needed(fields, "rel_extent")};
  scale(whole);
  if (const auto floor = fields.optional_number("log_scaling_n_floor", 1 << 30)) {
    whole.growth = GrowthSpec{
        .beta =
            static_cast<float>(fields.optional_real("log_scaling_alpha", -1e6, 1e6).value_or(0.1)),
        .length = static_cast<float>(required(*floor, "log_scaling_n_floor")),
        .offset = 1,
        .is_smooth = true};
  }
  const std::vector<std::uint64_t> locals = fields.numbers("local_layer_ids");
  if (model.mixture) {
    if (!fields.boolean("shared_expert_sink", true)) {
      refuse(ErrorCode::kUnsupported,
             "'shared_expert_sink' is false; the router of this family weighs shared experts");
    }
    RouterSpec& router = model.router();
    router.score = GateScore::kSigmoid;
    router.correction_bias = true;
    router.normalize = true;
    router.scale = static_cast<float>(fields.optional_real("route_scale", -1e9, 1e9).value_or(8));
    router.weighed_shared = static_cast<std::size_t>(config.n_shared_experts);
  }
  ModelSpec spec =
      model.with([&](std::size_t l) { return std::ranges::count(locals, l) > 0 ? local : whole; });
  for (LayerSpec& layer : spec.layers) layer.short_convolution = kernel;
  return spec;
}

}  // namespace ingot::inference
