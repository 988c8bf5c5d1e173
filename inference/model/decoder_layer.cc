#include "inference/model/decoder_layer.h"

#include <algorithm>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "inference/model/step/norm.h"
#include "inference/model/step/step.h"

namespace ingot::inference {

namespace {

void add_rounded(Profile profile, Matrix& to, const Matrix& what) {
  for (std::size_t i = 0; i < to.values().size(); ++i) to.values()[i] += what.values()[i];
  round_between(profile, to.values());
}

}  // namespace

DecoderLayer::DecoderLayer(const WeightStore& weights, const StepContext& context,
                           std::uint32_t layer, std::size_t cache_layer, ExpertStore* experts)
    : layer_(layer), cache_layer_(cache_layer) {
  const ModelSpec& spec = context.spec;
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  input_norm_ = weights.vector(prefix + "input_layernorm.weight", {spec.hidden});
  post_norm_ = weights.vector(prefix + "post_attention_layernorm.weight", {spec.hidden});
  if (spec.mla) {
    mla_.emplace(weights, context, prefix + "self_attn.",
                 spec.indexer.has_value() && spec.indexer->own[layer]);
  } else {
    gqa_.emplace(weights, context, prefix + "self_attn.");
  }
  if (spec.is_moe[layer]) {
    INGOT_CHECK(experts != nullptr);
    mixture_.emplace(weights, context, prefix + "mlp.", layer, *experts);
  } else {
    const std::string module = prefix + "mlp.";
    const Range mine = tensor_part(context.rank, spec.dense_intermediate, module + "*");
    dense_ = Mlp::load(weights, context, module, spec.dense_intermediate, mine);
  }
}

void DecoderLayer::forward(const StepContext& context, Matrix& hidden, const StepRows& rows,
                           KvCache& cache, Selection& selection, const Taps& taps) const {
  const LayerStep step{.context = context,
                       .rows = rows,
                       .layer = layer_,
                       .cache_layer = cache_layer_,
                       .cache = cache,
                       .selection = selection,
                       .taps = taps};
  const auto reduce = [&](std::string_view name, Matrix& sums) {
    context.comm.all_reduce({.group = Group::kTensor, .name = name, .layer = layer_},
                            sums.values());
    round_between(context.profile, sums.values());
  };
  const Matrix attention_input = rms_normed(context, hidden, input_norm_);
  Matrix attended =
      mla_ ? mla_->partial(step, attention_input) : gqa_->partial(step, attention_input);
  reduce("attention sum", attended);
  require_finite(attended, layer_, "the attention output");
  add_rounded(context.profile, hidden, attended);
  const Matrix ffn_input = rms_normed(context, hidden, post_norm_);
  Matrix out =
      mixture_ ? mixture_->forward(context, ffn_input, taps) : dense_->partial(context, ffn_input);
  if (!mixture_) reduce("MLP sum", out);
  require_finite(out, layer_, mixture_ ? "the mixture of experts" : "the MLP");
  add_rounded(context.profile, hidden, out);
}

namespace {

std::string prefix_of(const StepContext& context) {
  return fmt::format("model.layers.{}.", context.spec.layers);
}

}  // namespace

bool MtpLayer::is_in(const WeightStore& weights, const ModelSpec& spec) {
  const auto tensors = weights.source().tensors();
  return spec.mtp_layers > 0 &&
         std::any_of(tensors.begin(), tensors.end(), [&](const formats::LogicalTensor& tensor) {
           return tensor.layer && *tensor.layer >= spec.layers;
         });
}

MtpLayer::MtpLayer(const WeightStore& weights, const StepContext& context, ExpertStore* experts)
    : embedding_norm_(weights.vector(prefix_of(context) + "enorm.weight", {context.spec.hidden})),
      hidden_norm_(weights.vector(prefix_of(context) + "hnorm.weight", {context.spec.hidden})),
      head_norm_(
          weights.vector(prefix_of(context) + "shared_head.norm.weight", {context.spec.hidden})),
      project_(weights.linear(prefix_of(context) + "eh_proj.weight", context.spec.hidden,
                              2 * context.spec.hidden)),
      layer_(weights, context, static_cast<std::uint32_t>(context.spec.layers), 0, experts) {}

Matrix MtpLayer::forward(const StepContext& context, const Matrix& embedded, const Matrix& normed,
                         const StepRows& rows, KvCache& cache, Selection& selection,
                         const Taps& taps) const {
  INGOT_CHECK(normed.rows() == embedded.rows());
  const Profile profile = context.profile;
  const std::size_t width = context.spec.hidden;
  Matrix joined(normed.rows(), 2 * width);
  rms_norm(profile, embedded.view(), embedding_norm_, context.spec.norm_eps,
           joined.columns(0, width));
  rms_norm(profile, normed.view(), hidden_norm_, context.spec.norm_eps,
           joined.columns(width, width));
  Matrix hidden = rounded_product(context, project_, joined);
  layer_.forward(context, hidden, rows, cache, selection, taps);
  if (taps.hidden) taps.hidden(context.spec.layers + 1, hidden);
  rms_norm(profile, hidden.view(), head_norm_, context.spec.norm_eps, hidden.view());
  return hidden;
}

}  // namespace ingot::inference
