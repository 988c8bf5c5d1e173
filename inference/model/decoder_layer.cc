#include "inference/model/decoder_layer.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "inference/model/step/norm.h"
#include "inference/model/step/step.h"

namespace ingot::inference {

using formats::Role;

HyperWeights DecoderLayer::hyper_weights(const WeightStore& weights, const StepContext& context,
                                         const std::string& prefix) {
  const std::size_t n = context.spec.hyper->streams;
  return {.fn = weights.vector(prefix + "fn", {(2 + n) * n, n * context.spec.hidden}),
          .base = weights.vector(prefix + "base", {(2 + n) * n}),
          .scale = weights.vector(prefix + "scale", {3})};
}

// The module is that of a tensor which all mixers of a kind have.
void DecoderLayer::load_mixer(const WeightStore& weights, const StepContext& context) {
  const ModelSpec& spec = context.spec;
  const MixerSpec own = spec.mixer(layer_);
  const auto module = [&](Role role) { return module_prefix(weights.name_of(role, layer_)); };
  if (const auto* compressed = std::get_if<CompressedSpec>(&own)) {
    mixer_.emplace<CompressedAttention>(weights, context, module(Role::kQaProj), *compressed,
                                        compressed->compressor ? spec.compressed_rope : spec.rope);
  } else if (const auto* delta = std::get_if<DeltaNetSpec>(&own)) {
    mixer_.emplace<DeltaNet>(weights, context, layer_, module(Role::kLinearAttentionOut), *delta);
  } else if (const auto* space = std::get_if<StateSpaceSpec>(&own)) {
    mixer_.emplace<StateSpace>(weights, context, module(Role::kLinearAttentionOut), *space);
  } else if (std::holds_alternative<NoMixer>(own)) {
    return;
  } else if (spec.mla) {
    mixer_.emplace<MlaAttention>(weights, context, layer_, module(Role::kKvbProj));
  } else {
    mixer_.emplace<GqaAttention>(weights, context, layer_, module(Role::kKProj));
  }
}

DecoderLayer::DecoderLayer(const WeightStore& weights, const StepContext& context,
                           std::uint32_t layer, std::size_t cache_layer, ExpertStore* experts)
    : layer_(layer), cache_layer_(cache_layer) {
  const ModelSpec& spec = context.spec;
  if (spec.is_twofold) {
    INGOT_CHECK(experts != nullptr);
    twofold_.emplace(weights, context, layer, *experts);
    return;
  }
  const std::string input_norm = weights.name_of(Role::kInputNorm, layer);
  input_norm_ = norm_weights(weights, spec, input_norm, spec.hidden);
  // A layer that only feeds forward has one norm.
  const bool is_single =
      std::holds_alternative<NoMixer>(spec.mixer(layer)) || !spec.feeds_forward(layer);
  // Where a third norm has the role of the second, each has its usual name.
  const bool has_third = spec.norms_mixture && spec.is_moe[layer];
  const std::string module_of_norms = module_prefix(input_norm);
  const auto norm = [&](const std::string& name) {
    return norm_weights(weights, spec, name, spec.hidden);
  };
  if (has_third) mixture_norm_ = norm(module_of_norms + "post_mlp_layernorm.weight");
  post_norm_ = is_single ? input_norm_
                         : norm(has_third ? module_of_norms + "post_attention_layernorm.weight"
                                          : weights.name_of(Role::kPostAttentionNorm, layer));
  load_mixer(weights, context);
  if (spec.hyper) {
    mixer_streams_ = hyper_weights(weights, context, module_of_norms + "hc_attn_");
    ffn_streams_ = hyper_weights(weights, context, module_of_norms + "hc_ffn_");
  }
  if (spec.short_convolution > 0) {
    const auto convolution = [&](const char* name, Convolved what) {
      return ShortConvolution(weights, context, layer, module_of_norms + name, what);
    };
    mixer_convolution_ = convolution("attn_sconv.weight", Convolved::kAttention);
    ffn_convolution_ = convolution("mlp_sconv.weight", Convolved::kFeedForward);
  }
  if (!spec.feeds_forward(layer)) return;
  if (spec.is_moe[layer]) {
    INGOT_CHECK(experts != nullptr);
    mixture_.emplace(weights, context, layer, *experts);
  } else {
    const std::string module = module_prefix(weights.name_of(Role::kDenseDown, layer));
    const Range mine = tensor_part(context.rank, spec.dense_intermediate, module + "*");
    dense_ = Mlp::load(weights, context, layer, Mlp::kDense, spec.dense_intermediate, mine);
    if (weights.expects(module + "global_scale", layer))
      dense_scale_ = weights.vector(module + "global_scale", {1}).front();
  }
}

void DecoderLayer::forward(const StepContext& context, Matrix& hidden, const StepRows& rows,
                           KvCache& cache, Selection& selection, const Taps& taps,
                           KvCache* keys) const {
  const std::size_t before = layer_ - context.spec.keys_of(layer_);
  LayerStep step{.context = context,
                 .rows = rows,
                 .layer = layer_,
                 .cache_layer = cache_layer_,
                 .cache = cache,
                 .key_cache = keys != nullptr ? *keys : cache,
                 .key_layer = keys != nullptr ? 0 : cache_layer_ - before,
                 .selection = selection,
                 .taps = taps};
  for (const SequenceRun& run : rows.runs) {
    if (context.spec.short_convolution > 0) step.recent.push_back(step.state(run));
  }
  if (twofold_) {
    twofold_->forward(step, hidden);
    return;
  }
  // The block's output goes back into the streams, or is added to the one that there is.
  const auto pass = [&](const HyperWeights& streams, std::span<const float> norm,
                        std::string_view what, const auto& block) {
    std::optional<HyperInput> input;
    if (context.spec.hyper) {
      input = hyper_input(context.profile, *context.spec.hyper, streams, hidden, context.threads);
    }
    const Matrix out = block(rms_normed(context, input ? input->collapsed : hidden, norm));
    require_finite(out, layer_, what);
    if (input) {
      hyper_output(context.profile, *input, out, hidden);
    } else {
      add_rounded(context.profile, hidden, out);
    }
  };
  std::visit(
      [&](const auto& mixer) {
        if constexpr (!std::is_same_v<decltype(mixer), const std::monostate&>) {
          pass(mixer_streams_, input_norm_, "the attention output", [&](const Matrix& x) {
            Matrix mixed = mixer.partial(step, x);
            reduce(step, "attention sum", mixed);
            mixer_convolution_.apply(step, mixed);
            return mixed;
          });
        }
      },
      mixer_);
  if (!mixture_ && !dense_) return;
  pass(ffn_streams_, post_norm_, mixture_ ? "the mixture of experts" : "the MLP",
       [&](const Matrix& x) {
         Matrix out;
         if (mixture_) {
           out = mixture_->forward(context, x, rows.tokens, taps);
           if (!mixture_norm_.empty()) out = rms_normed(context, out, mixture_norm_);
         } else {
           out = dense_->partial(context, x);
           reduce(step, "MLP sum", out);
           scale_rounded(context.profile, dense_scale_, out);
         }
         ffn_convolution_.apply(step, out);
         return out;
       });
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
