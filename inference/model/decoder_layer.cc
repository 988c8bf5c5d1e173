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

namespace {

HyperWeights hyper_weights(const WeightStore& weights, const StepContext& context,
                           const std::string& prefix) {
  const std::size_t n = context.spec.ends.hyper->streams;
  return {.fn = weights.vector(prefix + "fn", {(2 + n) * n, n * context.spec.hidden}),
          .base = weights.vector(prefix + "base", {(2 + n) * n}),
          .scale = weights.vector(prefix + "scale", {3})};
}

Mlp dense_mlp(const WeightStore& weights, const StepContext& context, std::uint32_t layer,
              const MlpSpec& spec, std::uint8_t number) {
  const std::string down = weights.name_of(Role::kDenseDown, layer, {}, number);
  const std::string module = module_prefix(down);
  const Range mine = tensor_part(context.rank, spec.width, module + "*");
  Mlp mlp = Mlp::load(weights, context, layer, Mlp::kDense, spec, mine, number);
  if (weights.expects(module + "global_scale", layer))
    mlp.scale = weights.vector(module + "global_scale", {1}).front();
  return mlp;
}

}  // namespace

// The module is that of a tensor which all mixers of a kind have.
DecoderLayer::Body DecoderLayer::load(const WeightStore& weights, const StepContext& context,
                                      const BlockSpec& block, ExpertStore* experts) const {
  const auto module = [&](Role role) {
    return module_prefix(weights.name_of(role, layer_, {}, block.number));
  };
  return std::visit(
      [&](const auto& spec) -> Body {
        using Spec = std::decay_t<decltype(spec)>;
        if constexpr (std::is_same_v<Spec, LatentSpec>) {
          return MlaAttention(weights, context, layer_, module(Role::kKvbProj), spec);
        } else if constexpr (std::is_same_v<Spec, GroupedSpec>) {
          return GqaAttention(weights, context, layer_, module(Role::kKProj), spec);
        } else if constexpr (std::is_same_v<Spec, CompressedSpec>) {
          return CompressedAttention(weights, context, module(Role::kQaProj), spec);
        } else if constexpr (std::is_same_v<Spec, DeltaNetSpec>) {
          return DeltaNet(weights, context, layer_, module(Role::kLinearAttentionOut), spec);
        } else if constexpr (std::is_same_v<Spec, StateSpaceSpec>) {
          return StateSpace(weights, context, module(Role::kLinearAttentionOut), spec);
        } else if constexpr (std::is_same_v<Spec, MixtureSpec>) {
          INGOT_CHECK(experts != nullptr);
          return Mixture(weights, context, layer_, spec, *experts);
        } else {
          return dense_mlp(weights, context, layer_, spec, block.number);
        }
      },
      block.body);
}

DecoderLayer::DecoderLayer(const WeightStore& weights, const StepContext& context,
                           std::uint32_t layer, std::size_t cache_layer, ExpertStore* experts)
    : layer_(layer), cache_layer_(cache_layer) {
  const LayerSpec& spec = context.spec.layers[layer];
  const std::string module_of_norms = module_prefix(weights.name_of(Role::kInputNorm, layer));
  const auto norm = [&](const std::string& name) {
    return norm_weights(weights, context.spec, name, context.spec.hidden);
  };
  std::size_t n_streams = 0;
  for (const BlockSpec& block : spec.blocks) {
    const bool is_mixer = block.is_mixer();
    Block& own = blocks_.emplace_back(Block{.body = load(weights, context, block, experts)});
    own.input_of = block.input_of;
    if (!block.input_of) {
      // A layer of one block has one norm. Where a third norm has the role of the second, each has
      // its usual name.
      const Role role =
          is_mixer || spec.blocks.size() == 1 ? Role::kInputNorm : Role::kPostAttentionNorm;
      own.norm = norm(block.norms_output ? module_of_norms + "post_attention_layernorm.weight"
                                         : weights.name_of(role, layer, {}, block.number));
    }
    if (block.norms_output) own.output_norm = norm(module_of_norms + "post_mlp_layernorm.weight");
    own.first_stream = n_streams;
    n_streams +=
        block_streams(block, context.rank, context.profile, plain_kv_format(context.profile))
            .size();
    if (context.spec.ends.hyper) {
      own.streams =
          hyper_weights(weights, context, module_of_norms + (is_mixer ? "hc_attn_" : "hc_ffn_"));
    }
    if (spec.short_convolution > 0) {
      own.convolution =
          ShortConvolution(weights, context, layer,
                           module_of_norms + (is_mixer ? "attn_sconv.weight" : "mlp_sconv.weight"),
                           is_mixer ? Convolved::kAttention : Convolved::kFeedForward);
    }
  }
}

Matrix DecoderLayer::run(const Block& block, const LayerStep& step, const Matrix& x) {
  const StepContext& context = step.context;
  Matrix out;
  std::string_view what = "the attention output";
  if (const auto* mixture = std::get_if<Mixture>(&block.body)) {
    what = "the mixture of experts";
    out = mixture->forward(context, x, step.rows.tokens, step.taps);
  } else if (const auto* mlp = std::get_if<Mlp>(&block.body)) {
    what = "the MLP";
    out = mlp->partial(context, x);
    reduce(step, "MLP sum", out);
    scale_rounded(context.profile, mlp->scale, out);
  } else {
    out = std::visit(
        [&](const auto& mixer) {
          if constexpr (requires { mixer.partial(step, x); }) return mixer.partial(step, x);
          return Matrix();
        },
        block.body);
    reduce(step, "attention sum", out);
  }
  if (!block.output_norm.empty()) out = rms_normed(context, out, block.output_norm);
  block.convolution.apply(step, out);
  require_finite(out, step.layer, what);
  return out;
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
    if (context.spec.layers[layer_].short_convolution > 0) step.recent.push_back(step.state(run));
  }
  const std::optional<HyperSpec>& hyper = context.spec.ends.hyper;
  std::vector<Matrix> inputs(blocks_.size());
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const Block& block = blocks_[i];
    step.first_stream = block.first_stream;
    std::optional<HyperInput> input;
    if (hyper) input = hyper_input(context.profile, *hyper, block.streams, hidden, context.threads);
    if (!block.input_of)
      inputs[i] = rms_normed(context, input ? input->collapsed : hidden, block.norm);
    // The block's output goes back into the streams, or is added to the one that there is.
    const Matrix out = run(block, step, inputs[block.input_of.value_or(i)]);
    if (input) {
      hyper_output(context.profile, *input, out, hidden);
    } else {
      add_rounded(context.profile, hidden, out);
    }
    const bool is_kept =
        std::ranges::any_of(blocks_, [&](const Block& later) { return later.input_of == i; });
    if (!is_kept) inputs[i] = Matrix();
  }
}

namespace {

std::string prefix_of(const StepContext& context) {
  return fmt::format("model.layers.{}.", context.spec.n_main);
}

}  // namespace

bool MtpLayer::is_in(const WeightStore& weights, const ModelSpec& spec) {
  const auto tensors = weights.source().tensors();
  return spec.layers.size() > spec.n_main &&
         std::any_of(tensors.begin(), tensors.end(), [&](const formats::LogicalTensor& tensor) {
           return tensor.layer && *tensor.layer >= spec.n_main;
         });
}

MtpLayer::MtpLayer(const WeightStore& weights, const StepContext& context, ExpertStore* experts)
    : embedding_norm_(weights.vector(prefix_of(context) + "enorm.weight", {context.spec.hidden})),
      hidden_norm_(weights.vector(prefix_of(context) + "hnorm.weight", {context.spec.hidden})),
      head_norm_(
          weights.vector(prefix_of(context) + "shared_head.norm.weight", {context.spec.hidden})),
      project_(weights.linear(prefix_of(context) + "eh_proj.weight", context.spec.hidden,
                              2 * context.spec.hidden)),
      layer_(weights, context, static_cast<std::uint32_t>(context.spec.n_main), 0, experts) {}

Matrix MtpLayer::forward(const StepContext& context, const Matrix& embedded, const Matrix& normed,
                         const StepRows& rows, KvCache& cache, Selection& selection,
                         const Taps& taps) const {
  INGOT_CHECK(normed.rows() == embedded.rows());
  const Profile profile = context.profile;
  const std::size_t width = context.spec.hidden;
  Matrix joined(normed.rows(), 2 * width);
  rms_norm(profile, embedded.view(), embedding_norm_, context.spec.norm.eps,
           joined.columns(0, width));
  rms_norm(profile, normed.view(), hidden_norm_, context.spec.norm.eps,
           joined.columns(width, width));
  Matrix hidden = rounded_product(context, project_, joined);
  layer_.forward(context, hidden, rows, cache, selection, taps);
  if (taps.hidden) taps.hidden(context.spec.n_main + 1, hidden);
  rms_norm(profile, hidden.view(), head_norm_, context.spec.norm.eps, hidden.view());
  return hidden;
}

}  // namespace ingot::inference
