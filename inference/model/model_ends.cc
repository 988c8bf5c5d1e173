#include "inference/model/model_ends.h"

#include <algorithm>

#include "formats/base/error.h"
#include "inference/kernels/vector_math.h"
#include "inference/model/step/norm.h"
#include "inference/model/step/step.h"
#include "inference/parallel/comm.h"

namespace ingot::inference {

using formats::FineRole;
using formats::Role;

namespace {

Linear read_vocabulary(const BlockWeights& weights, Role role, const ModelSpec& spec, Range vocab) {
  return weights.linear(role, spec.stored_vocab, spec.hidden, vocab, {0, spec.hidden});
}

Linear read_embedding(const WeightStore& store, const ModelSpec& spec, Range vocab) {
  const BlockWeights weights(store), mtp(store, static_cast<std::uint32_t>(spec.n_main));
  const bool has_copy_alone = !weights.has(Role::kEmbedding) && mtp.has(Role::kMtpEmbedding);
  return has_copy_alone ? read_vocabulary(mtp, Role::kMtpEmbedding, spec, vocab)
                        : read_vocabulary(weights, Role::kEmbedding, spec, vocab);
}

Range vocabulary_part(const StepContext& context) {
  return tensor_part(context.rank, context.spec.stored_vocab, "the vocabulary");
}

}  // namespace

void require_tokens(const ModelSpec& spec, std::span<const Row> rows) {
  for (const Row& row : rows) {
    if (row.token >= 0 && static_cast<std::size_t>(row.token) < spec.vocab) continue;
    throw Error(ErrorCode::kInvalidArgument, "token id {} is not within the vocabulary of {}",
                row.token, spec.vocab);
  }
}

TokenEmbedding::TokenEmbedding(const WeightStore& weights, const StepContext& context)
    : vocab_(vocabulary_part(context)), weight_(read_embedding(weights, context.spec, vocab_)) {
  const BlockWeights own(weights);
  if (own.expects(FineRole::kEmbeddingFactor)) {
    factors_ = own.vector(FineRole::kEmbeddingFactor, {context.spec.hidden});
    shifts_ = own.vector(FineRole::kEmbeddingShift, {context.spec.hidden});
  }
  if (const auto& form = context.spec.ends.embedding_norm)
    norm_ = hidden_norm(own, context.spec.hidden, *form, {.weight = Role::kInputNorm});
  if (context.spec.layer_inputs) layer_inputs_.emplace(own, context);
  if (context.spec.ends.hyper && context.spec.ends.hyper->active)
    spread_ = StreamEnds(own, context, FineRole::kStreamsSpread);
}

Matrix TokenEmbedding::embed(const StepContext& context, std::span<const Row> rows) const {
  require_tokens(context.spec, rows);
  Matrix hidden(rows.size(), context.spec.hidden);
  std::vector<std::size_t> tokens;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    auto token = static_cast<std::size_t>(rows[r].token);
    const auto& placeholders = context.spec.ends.placeholders;
    if (std::ranges::find(placeholders, token) != placeholders.end())
      token = context.spec.ends.padding;
    tokens.push_back(token);
    if (token - vocab_.first < vocab_.count) {
      decode_row(weight_.weight(), token - vocab_.first, hidden.row(r));
    }
  }
  context.comm.all_reduce({.group = Group::kTensor, .name = "embedding sum"}, hidden.values());
  round_between(context.profile, hidden.values());
  float factor = context.spec.ends.embedding_factor;
  if (context.spec.ends.rounds_embedding_factor) round_between(context.profile, {&factor, 1});
  scale_rounded(context.profile, factor, hidden);
  for (std::size_t r = 0; !factors_.empty() && r < hidden.rows(); ++r) {
    const auto row = hidden.row(r);
    for (std::size_t c = 0; c < row.size(); ++c) row[c] = (row[c] + shifts_[c]) * factors_[c];
  }
  if (!factors_.empty()) round_between(context.profile, hidden.values());
  if (!norm_.empty()) hidden = normed(context, hidden, norm_);
  Matrix inputs;
  if (layer_inputs_) inputs = layer_inputs_->make(context, tokens, hidden);
  if (!spread_.empty()) {
    hidden = spread_.spread(context, hidden);
  } else if (context.spec.ends.hyper) {
    hidden = hyper_streams(*context.spec.ends.hyper, hidden);
  }
  hidden = of_width(std::move(hidden), context.spec.stream_width());
  for (std::size_t r = 0; r < inputs.rows(); ++r)
    std::ranges::copy(inputs.row(r), hidden.row(r).last(inputs.cols()).begin());
  return hidden;
}

OutputHead::OutputHead(const WeightStore& store, const StepContext& context,
                       const TokenEmbedding* embedding)
    : vocab_(vocabulary_part(context)) {
  const BlockWeights weights(store);
  // A head that is stored counts, whatever the config says of it.
  if (!context.spec.ends.tied_head || weights.has(Role::kHead)) {
    weight_ = read_vocabulary(weights, Role::kHead, context.spec, vocab_);
  } else if (embedding != nullptr) {
    weight_ = embedding->weight();
  } else {
    weight_ = read_embedding(store, context.spec, vocab_);
  }
  if (weights.expects(FineRole::kHeadBias))
    bias_ = weights.vector_part(FineRole::kHeadBias, context.spec.stored_vocab, vocab_);
  const std::optional<HyperSpec>& hyper = context.spec.ends.hyper;
  if (hyper && hyper->rank > 0) {
    gated_streams_ = GatedStreams(
        weights, context,
        {FineRole::kHeadStreamsNorm, FineRole::kHeadStreamsDown, FineRole::kHeadStreamsUp});
    return;
  }
  if (context.spec.sources > 0) sources_ = SourceMix(weights, context, FineRole::kHeadSources);
  norm_ = hidden_norm(weights, context.spec.hidden, context.spec.ends.final_norm,
                      {.weight = Role::kFinalNorm,
                       .bias = FineRole::kFinalNormBias,
                       .down = FineRole::kFinalNormDown,
                       .up = FineRole::kFinalNormUp});
  if (hyper && hyper->active) {
    join_ = StreamEnds(weights, context, FineRole::kStreamsJoin);
    return;
  }
  if (!hyper || !hyper->learned_head) return;
  const std::size_t n = hyper->streams;
  streams_ = {.fn = weights.vector(FineRole::kHeadStreamsFn, {n, n * context.spec.hidden}),
              .base = weights.vector(FineRole::kHeadStreamsBase, {n}),
              .scale = weights.vector(FineRole::kHeadStreamsScale, {1})};
}

Matrix OutputHead::final_norm(const StepContext& context, const Matrix& states) const {
  Matrix hidden = of_width(states, context.spec.shown_width());
  if (!sources_.empty()) {
    Matrix sources(states.rows(), context.spec.carried);
    for (std::size_t r = 0; r < states.rows(); ++r)
      std::ranges::copy(states.row(r).last(sources.cols()), sources.row(r).begin());
    hidden = sources_.inputs(context.profile, sources, context.spec.sources, hidden);
  }
  if (!gated_streams_.empty()) return gated_streams_.input(context, hidden).collapsed;
  if (!join_.empty()) return normed(context, join_.joined(context, hidden), norm_);
  if (!context.spec.ends.hyper) return normed(context, hidden, norm_);
  return normed(
      context,
      hyper_head(context.profile, *context.spec.ends.hyper, streams_, hidden, context.threads),
      norm_);
}

Matrix OutputHead::logits(const StepContext& context, const Matrix& normed) const {
  Matrix mine(normed.rows(), vocab_.count);
  Matrix divided;
  if (context.spec.ends.logit_divisor != 1.0F) {
    divided = normed;
    for (float& value : divided.values()) value /= context.spec.ends.logit_divisor;
    round_between(context.profile, divided.values());
  }
  weight_.apply((divided.values().empty() ? normed : divided).view(), mine.view(), context.threads);
  add_bias(bias_, mine);
  if (const float factor = context.spec.ends.logit_factor; factor != 1.0F) {
    for (float& logit : mine.values()) logit *= factor;
  }
  const std::size_t vocab = context.spec.vocab;
  if (context.spec.ends.logit_cap) {
    const float cap = *context.spec.ends.logit_cap;
    for (float& logit : mine.values()) logit = soft_capped(logit, cap);
  }
  if (vocab_.count == vocab) {
    require_finite(mine, context.spec.n_main, "the head");
    return mine;
  }
  const std::vector<float> all =
      all_gather(context.comm, {.group = Group::kTensor, .name = "logits"}, mine.values());
  INGOT_CHECK(all.size() == normed.rows() * context.spec.stored_vocab);
  Matrix logits(normed.rows(), vocab);
  for (std::size_t first = 0; first < vocab; first += vocab_.count) {
    for (std::size_t r = 0; r < normed.rows(); ++r) {
      const float* at = all.data() + first * normed.rows() + r * vocab_.count;
      std::copy_n(at, std::min(vocab_.count, vocab - first), logits.row(r).data() + first);
    }
  }
  require_finite(logits, context.spec.n_main, "the head");
  return logits;
}

}  // namespace ingot::inference
