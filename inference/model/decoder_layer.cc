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

const NormRoles kFirstNorm = {Role::kInputNorm, FineRole::kInputNormBias, FineRole::kInputNormDown,
                              FineRole::kInputNormUp};
const NormRoles kSecondNorm = {Role::kPostAttentionNorm, FineRole::kPostAttentionNormBias,
                               FineRole::kPostAttentionNormDown, FineRole::kPostAttentionNormUp};

const NormRoles kMixerOutputNorm = {.weight = FineRole::kAttentionOutputNorm,
                                    .down = FineRole::kAttentionOutputNormDown,
                                    .up = FineRole::kAttentionOutputNormUp};
const NormRoles kFeedForwardOutputNorm = {.weight = FineRole::kFeedForwardOutputNorm,
                                          .down = FineRole::kFeedForwardOutputNormDown,
                                          .up = FineRole::kFeedForwardOutputNormUp};

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
  if (context.spec.visits(layer) > 1) messages_.emplace(own_weights, context);
  const HyperSpec* hyper = context.spec.ends.hyper ? &*context.spec.ends.hyper : nullptr;
  if (hyper != nullptr && hyper->active) {
    predicted_.emplace(own_weights, context);
    hyper = nullptr;
  }
  if (context.spec.layer_inputs) input_gate_.emplace(own_weights, context);
  std::size_t n_streams = 0;
  for (const BlockSpec& block : spec.blocks) {
    const BlockWeights weights(store, layer, block.number);
    const bool is_mixer = block.is_mixer();
    Block& own = blocks_.emplace_back(Block{.body = load(weights, context, block.body, experts)});
    own.input_of = block.input_of;
    if (!block.input_of && block.norms_input) {
      // A layer with a single block has only the input norm.
      const bool is_first = is_mixer || spec.blocks.size() == 1;
      own.norm = hidden_norm(weights, context.spec.hidden, context.spec.norm,
                             is_first ? kFirstNorm : kSecondNorm);
    }
    if (block.output_norm) {
      own.output_norm = hidden_norm(weights, context.spec.hidden, *block.output_norm,
                                    is_mixer ? kMixerOutputNorm : kFeedForwardOutputNorm);
    }
    own.sum = ResidualSum(weights, context, block);
    if (const std::size_t rank = block.residual_rank; rank > 0) {
      const std::size_t hidden = context.spec.hidden;
      own.residual_down = weights.linear(FineRole::kMixerResidualDown, rank, hidden);
      own.residual_up = weights.linear(FineRole::kMixerResidualUp, hidden, rank);
      own.residual_norm =
          hidden_norm(weights, hidden, context.spec.norm, {.weight = FineRole::kMixerResidualNorm});
    }
    if (context.spec.sources > 0 && !is_mixer)
      own.sources = SourceMix(weights, context, FineRole::kFeedForwardSources);
    // Queries of a mixer have the number of the layer before.
    if (context.spec.sources > 0 && is_mixer && layer > 0)
      own.sources =
          SourceMix(BlockWeights(store, layer - 1), context, FineRole::kMixerSources, block.inputs);
    own.first_stream = n_streams;
    n_streams +=
        block_streams(block, context.rank, context.profile, plain_kv_format(context.profile))
            .size();
    if (hyper != nullptr && hyper->rank > 0) {
      own.gated_streams =
          GatedStreams(weights, context, is_mixer ? kGatedMixer : kGatedFeedForward);
    } else if (hyper != nullptr) {
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
    out = mixture->forward(step, x);
  } else if (const auto* mlp = std::get_if<Mlp>(&block.body)) {
    what = "the MLP";
    out = mlp->partial(context, x);
    reduce(step, "MLP sum", out);
    scale_rounded(context.profile, mlp->scale, out);
  } else {
    const Mixer& mixer = *std::get<std::unique_ptr<Mixer>>(block.body);
    out = mixer.partial(step, x);
    if (!mixer.is_whole()) reduce(step, "attention sum", out);
  }
  if (!block.output_norm.empty()) out = normed(context, out, block.output_norm);
  if (!block.residual_down.empty()) {
    const Matrix inner = rounded_product(context, block.residual_down, x);
    Matrix more =
        normed(context, rounded_product(context, block.residual_up, inner), block.residual_norm);
    add_rounded(context.profile, more, x);
    add_rounded(context.profile, out, more);
  }
  block.convolution.apply(step, out);
  scale_rounded(context.profile, context.spec.layers[step.layer].residual_factor, out);
  require_finite(out, step.layer, what);
  return out;
}

// States of the layer's short convolutions are behind the others.
void DecoderLayer::split_states(LayerStep& step) const {
  const LayerSpec& spec = step.context.spec.layers[layer_];
  if (spec.short_convolution == 0) return;
  std::size_t columns = 0;
  for (const Range& each : convolved_columns(step.context.spec, step.context.rank, layer_))
    columns += each.count;
  std::vector<std::span<float>> of_mixer;
  for (const SequenceRun& run : step.rows.runs) {
    const std::span<float> all = step.state(run);
    step.recent.push_back(all.last((spec.short_convolution - 1) * columns));
    of_mixer.push_back(all.first(all.size() - step.recent.back().size()));
  }
  step.mixer_states = std::move(of_mixer);
}

// The first layer of a run keeps the stream that it got, before its mixer's output begins a new
// sum.
void DecoderLayer::add_source(const LayerStep& step, std::size_t block,
                              const Matrix& hidden) const {
  const LayerSpec& spec = step.context.spec.layers[layer_];
  if (block != 0 || spec.feed_forward_sources == spec.mixer_sources) return;
  const std::size_t first = spec.mixer_sources * hidden.cols();
  for (std::size_t r = 0; r < hidden.rows(); ++r)
    std::ranges::copy(hidden.row(r), step.carried->row(r).subspan(first).begin());
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

void DecoderLayer::finish_streams(const StepContext& context, const Matrix& carried, Matrix streams,
                                  Matrix& hidden) const {
  if (!predicted_) {
    if (input_gate_)
      add_rounded(context.profile, hidden, input_gate_->added(context, hidden, carried));
    return;
  }
  const Matrix active = predicted_->correct(context, hidden, streams);
  hidden = std::move(streams);
  if (input_gate_) add_behind_first(context, input_gate_->added(context, active, carried), hidden);
}

void DecoderLayer::forward(const StepContext& context, Matrix& hidden, const StepRows& rows,
                           KvCache& cache, Selection& selection, const Taps& taps, KvCache* keys,
                           const LoopVisit* again) const {
  const std::size_t before = layer_ - context.spec.keys_of(layer_);
  LayerStep step{.context = context,
                 .rows = rows,
                 .layer = layer_,
                 .cache_layer = again != nullptr ? again->cache_layer : cache_layer_,
                 .cache = cache,
                 .key_cache = keys != nullptr ? *keys : cache,
                 .key_layer = keys != nullptr ? 0 : cache_layer_ - before,
                 .selection = selection,
                 .taps = taps};
  split_states(step);
  Matrix carried;
  if (context.spec.carried > 0) {
    carried = Matrix(hidden.rows(), context.spec.carried);
    for (std::size_t r = 0; r < hidden.rows(); ++r)
      std::ranges::copy(hidden.row(r).last(carried.cols()), carried.row(r).begin());
    hidden = of_width(std::move(hidden), context.spec.shown_width());
    step.carried = &carried;
  }
  if (ngrams_) add_ngrams(step, hidden);
  Matrix streams;
  if (predicted_) {
    streams = std::move(hidden);
    hidden = predicted_->predict(context, streams);
  }
  const HyperSpec* hyper =
      context.spec.ends.hyper && !predicted_ ? &*context.spec.ends.hyper : nullptr;
  std::vector<Matrix> inputs(blocks_.size());
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const Block& block = blocks_[i];
    step.first_stream = block.first_stream;
    std::optional<HyperInput> input;
    if (!block.gated_streams.empty()) {
      input = block.gated_streams.input(context, hidden);
    } else if (hyper != nullptr) {
      input = hyper_input(context.profile, *hyper, block.streams, hidden, context.threads);
    }
    if (!block.input_of) {
      Matrix mixed;
      if (!block.sources.empty()) {
        const LayerSpec& own = context.spec.layers[layer_];
        mixed = block.sources.inputs(context.profile, carried,
                                     i == 0 ? own.mixer_sources : own.feed_forward_sources, hidden);
      }
      if (again != nullptr) {
        mixed = i == 0 ? messages_->mixer_inputs(context, *again, mixed)
                       : messages_->feed_forward_input(context, *again, mixed);
      }
      const Matrix& own = input ? input->collapsed : !block.sources.empty() ? mixed : hidden;
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
    add_source(step, i, hidden);
    if (spec.normed_residual) {
      hidden = x;
      scale_rounded(context.profile, *spec.normed_residual, hidden);
    }
    if (input) {
      hyper_output(context.profile, *input, out, hidden);
    } else {
      block.sum.add(context.profile, out, hidden);
    }
    const bool is_kept =
        std::ranges::any_of(blocks_, [&](const Block& later) { return later.input_of == i; });
    if (!is_kept) inputs[i] = Matrix();
  }
  finish_streams(context, carried, std::move(streams), hidden);
  scale_rounded(context.profile, scale_, hidden);
  if (context.spec.carried == 0) return;
  hidden = of_width(std::move(hidden), context.spec.stream_width());
  for (std::size_t r = 0; r < hidden.rows(); ++r)
    std::ranges::copy(carried.row(r), hidden.row(r).last(carried.cols()).begin());
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
