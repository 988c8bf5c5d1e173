#include "inference/model/decoder_layer.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "formats/base/error.h"
#include "inference/model/step/norm.h"
#include "inference/model/step/step.h"

namespace ingot::inference {

using formats::FineRole;
using formats::Role;

namespace {

struct StreamRoles {
  FineRole fn, base, scale;
};
constexpr StreamRoles kOfMixer = {FineRole::kMixerStreamsFn, FineRole::kMixerStreamsBase,
                                  FineRole::kMixerStreamsScale};
constexpr StreamRoles kOfFeedForward = {FineRole::kFeedForwardStreamsFn,
                                        FineRole::kFeedForwardStreamsBase,
                                        FineRole::kFeedForwardStreamsScale};

constexpr GatedStreams::Roles kGatedMixer = {FineRole::kMixerStreamsNorm,
                                             FineRole::kMixerStreamsDown, FineRole::kMixerStreamsUp,
                                             FineRole::kMixerStreamsInject};
constexpr GatedStreams::Roles kGatedFeedForward = {
    FineRole::kFeedForwardStreamsNorm, FineRole::kFeedForwardStreamsDown,
    FineRole::kFeedForwardStreamsUp, FineRole::kFeedForwardStreamsInject};

HyperWeights hyper_weights(const BlockWeights& weights, const StepContext& context,
                           const StreamRoles& roles) {
  const bool mixes = context.spec.ends.hyper->mixes;
  const std::size_t n = context.spec.ends.hyper->streams, rows = mixes ? (2 + n) * n : 2 * n;
  return {.fn = weights.vector(roles.fn, {rows, n * context.spec.hidden}),
          .base = weights.vector(roles.base, {rows}),
          .scale = weights.vector(roles.scale, {mixes ? std::size_t{3} : std::size_t{2}})};
}

Mlp dense_mlp(const BlockWeights& weights, const StepContext& context, const MlpSpec& spec) {
  const Range mine = tensor_part(context.rank, spec.width, "inner features of an MLP");
  Mlp mlp = Mlp::load(weights, context, Mlp::kDense, spec, mine);
  mlp.load_biases(weights, context, Mlp::kDense, spec.width, mine);
  if (spec.gate.is_xielu) mlp.load_xielu(weights);
  if (weights.expects(FineRole::kDenseScale))
    mlp.scale = weights.vector(FineRole::kDenseScale, {1}).front();
  return mlp;
}

}  // namespace

DecoderLayer::Body DecoderLayer::load(const BlockWeights& weights, const StepContext& context,
                                      const BodySpec& body, ExpertStore* experts) {
  if (const auto* mixer = std::get_if<MixerSpec>(&body)) return mixer->load(weights, context);
  if (const auto* mlp = std::get_if<MlpSpec>(&body)) return dense_mlp(weights, context, *mlp);
  INGOT_CHECK(experts != nullptr);
  return Mixture(weights, context, std::get<MixtureSpec>(body), *experts);
}

DecoderLayer::DecoderLayer(const WeightStore& store, const StepContext& context,
                           std::uint32_t layer, std::size_t cache_layer, ExpertStore* experts)
    : layer_(layer), cache_layer_(cache_layer) {
  const LayerSpec& spec = context.spec.layers[layer];
  const BlockWeights own_weights(store, layer);
  if (own_weights.expects(FineRole::kLayerScale))
    scale_ = own_weights.vector(FineRole::kLayerScale, {1}).front();
  if (spec.ngrams) ngrams_.emplace(own_weights, context, *spec.ngrams);
  const std::optional<HyperSpec>& hyper = context.spec.ends.hyper;
  std::size_t n_streams = 0;
  for (const BlockSpec& block : spec.blocks) {
    const BlockWeights weights(store, layer, block.number);
    const auto norm = [&](WeightRole role, std::optional<FineRole> bias = std::nullopt) {
      return hidden_norm(weights, context.spec, role, bias);
    };
    const bool is_mixer = block.is_mixer();
    Block& own = blocks_.emplace_back(Block{.body = load(weights, context, block.body, experts)});
    own.input_of = block.input_of;
    if (!block.input_of && block.norms_input) {
      // A layer with a single block has only the input norm.
      const bool is_first = is_mixer || spec.blocks.size() == 1;
      own.norm = is_first ? norm(Role::kInputNorm, FineRole::kInputNormBias)
                          : norm(Role::kPostAttentionNorm, FineRole::kPostAttentionNormBias);
    }
    if (block.norms_output) {
      own.output_norm = norm(is_mixer ? WeightRole(FineRole::kAttentionOutputNorm)
                                      : FineRole::kFeedForwardOutputNorm);
    }
    own.first_stream = n_streams;
    n_streams +=
        block_streams(block, context.rank, context.profile, plain_kv_format(context.profile))
            .size();
    if (hyper && hyper->rank > 0) {
      own.gated_streams =
          GatedStreams(weights, context, is_mixer ? kGatedMixer : kGatedFeedForward);
    } else if (hyper) {
      own.streams = hyper_weights(weights, context, is_mixer ? kOfMixer : kOfFeedForward);
    }
    if (spec.short_convolution > 0) {
      own.convolution = ShortConvolution(
          weights, context, is_mixer ? Convolved::kAttention : Convolved::kFeedForward);
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
    out = std::get<std::unique_ptr<Mixer>>(block.body)->partial(step, x);
    reduce(step, "attention sum", out);
  }
  if (!block.output_norm.empty()) out = normed(context, out, block.output_norm);
  block.convolution.apply(step, out);
  scale_rounded(context.profile, context.spec.layers[step.layer].residual_factor, out);
  require_finite(out, step.layer, what);
  return out;
}

// Adds embeddings of n-grams to the streams, and leaves the mixer's share of the states to the
// step.
void DecoderLayer::add_ngrams(LayerStep& step, Matrix& hidden) const {
  const NgramState own = state_of(*step.context.spec.layers[layer_].ngrams);
  std::vector<std::span<float>> of_ngrams, of_mixer;
  for (const SequenceRun& run : step.rows.runs) {
    const std::span<float> all = step.state(run);
    of_ngrams.push_back(all.last(own.inputs + own.tokens));
    of_mixer.push_back(all.first(all.size() - of_ngrams.back().size()));
  }
  add_rounded(step.context.profile, hidden, ngrams_->forward(step, hidden, of_ngrams));
  step.mixer_states = std::move(of_mixer);
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
  if (ngrams_) add_ngrams(step, hidden);
  const std::optional<HyperSpec>& hyper = context.spec.ends.hyper;
  std::vector<Matrix> inputs(blocks_.size());
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const Block& block = blocks_[i];
    step.first_stream = block.first_stream;
    std::optional<HyperInput> input;
    if (!block.gated_streams.empty()) {
      input = block.gated_streams.input(context, hidden);
    } else if (hyper) {
      input = hyper_input(context.profile, *hyper, block.streams, hidden, context.threads);
    }
    if (!block.input_of) {
      const Matrix& own = input ? input->collapsed : hidden;
      inputs[i] = block.norm.empty() ? own : normed(context, own, block.norm);
    }
    // The block's output goes back into the streams, or is added to the one that there is.
    const BlockSpec& spec = context.spec.layers[layer_].blocks[i];
    const Matrix& x = inputs[block.input_of.value_or(i)];
    Matrix scaled;
    if (spec.input_factor != 1.0F) {
      scaled = x;
      scale_rounded(context.profile, spec.input_factor, scaled);
    }
    Matrix out = run(block, step, spec.input_factor != 1.0F ? scaled : x);
    scale_rounded(context.profile, spec.output_factor, out);
    if (spec.normed_residual) {
      hidden = x;
      scale_rounded(context.profile, *spec.normed_residual, hidden);
    }
    if (input) {
      hyper_output(context.profile, *input, out, hidden);
    } else {
      add_rounded(context.profile, hidden, out);
    }
    const bool is_kept =
        std::ranges::any_of(blocks_, [&](const Block& later) { return later.input_of == i; });
    if (!is_kept) inputs[i] = Matrix();
  }
  scale_rounded(context.profile, scale_, hidden);
}

bool MtpLayer::is_in(const WeightStore& weights, const ModelSpec& spec) {
  const auto tensors = weights.source().tensors();
  return spec.layers.size() > spec.n_main &&
         std::any_of(tensors.begin(), tensors.end(), [&](const formats::LogicalTensor& tensor) {
           return tensor.layer && *tensor.layer >= spec.n_main;
         });
}

MtpLayer::MtpLayer(const WeightStore& store, const StepContext& context, ExpertStore* experts)
    : layer_(store, context, static_cast<std::uint32_t>(context.spec.n_main), 0, experts) {
  const BlockWeights weights(store, static_cast<std::uint32_t>(context.spec.n_main));
  const std::size_t hidden = context.spec.hidden;
  embedding_norm_ = weights.vector(Role::kMtpEmbeddingNorm, {hidden});
  hidden_norm_ = weights.vector(Role::kMtpHiddenNorm, {hidden});
  head_norm_ = weights.vector(Role::kMtpHeadNorm, {hidden});
  project_ = weights.linear(Role::kMtpProj, hidden, 2 * hidden);
}

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
