#include "inference/model/twofold_layer.h"

#include <string>

#include <fmt/format.h>

#include "inference/model/step/norm.h"

namespace ingot::inference {

TwofoldLayer::TwofoldLayer(const WeightStore& weights, const StepContext& context,
                           std::uint32_t layer, ExpertStore& experts)
    : mixture_(weights, context, layer, experts) {
  const ModelSpec& spec = context.spec;
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  const auto norm = [&](const char* name, int half) {
    return norm_weights(weights, spec, fmt::format("{}{}.{}.weight", prefix, name, half),
                        spec.hidden);
  };
  const Range all{0, spec.hidden};
  for (const int half : {0, 1}) {
    const std::string attention = fmt::format("{}self_attn.{}.", prefix, half);
    const std::string mlp = fmt::format("{}mlps.{}.", prefix, half);
    const Range mine = tensor_part(context.rank, spec.dense_intermediate, mlp + "*");
    const auto in = [&](const char* name) {
      return weights.linear(mlp + name, spec.dense_intermediate, spec.hidden, mine, all);
    };
    halves_.push_back({.input_norm = norm("input_layernorm", half),
                       .post_norm = norm("post_attention_layernorm", half),
                       .attention = MlaAttention(weights, context, layer, attention),
                       .mlp = {.gate = in("gate_proj.weight"),
                               .up = in("up_proj.weight"),
                               .down = weights.linear(mlp + "down_proj.weight", spec.hidden,
                                                      spec.dense_intermediate, all, mine),
                               .form = spec.gate_of(layer, /*is_expert=*/false)}});
  }
}

void TwofoldLayer::forward(const LayerStep& step, Matrix& hidden) const {
  const StepContext& context = step.context;
  Matrix mixed;
  for (std::size_t i = 0; i < halves_.size(); ++i) {
    const Half& half = halves_[i];
    LayerStep own = step;
    own.first_stream = i * kLatentStreams;
    Matrix attended = half.attention.partial(own, rms_normed(context, hidden, half.input_norm));
    reduce(step, "attention sum", attended);
    require_finite(attended, step.layer, "the attention output");
    add_rounded(context.profile, hidden, attended);
    const Matrix x = rms_normed(context, hidden, half.post_norm);
    if (i == 0) mixed = mixture_.forward(context, x, step.rows.tokens, step.taps);
    Matrix out = half.mlp.partial(context, x);
    reduce(step, "MLP sum", out);
    require_finite(out, step.layer, "the MLP");
    add_rounded(context.profile, hidden, out);
  }
  require_finite(mixed, step.layer, "the mixture of experts");
  add_rounded(context.profile, hidden, mixed);
}

}  // namespace ingot::inference
