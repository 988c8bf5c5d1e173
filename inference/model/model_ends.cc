#include "inference/model/model_ends.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "inference/model/step/norm.h"
#include "inference/model/step/step.h"
#include "inference/parallel/comm.h"

namespace ingot::inference {
namespace {

constexpr std::string_view kHead = "lm_head.weight";

Linear read_vocabulary(const WeightStore& weights, const ModelSpec& spec, std::string_view name,
                       Range vocab) {
  return weights.linear(name, spec.stored_vocab, spec.hidden, vocab, {0, spec.hidden});
}

Linear read_embedding(const WeightStore& weights, const ModelSpec& spec, Range vocab) {
  const std::string copy = fmt::format("model.layers.{}.embed_tokens.weight", spec.layers);
  const bool has_copy_alone = !weights.has(kEmbeddingName) && weights.has(copy);
  return read_vocabulary(weights, spec, has_copy_alone ? std::string_view(copy) : kEmbeddingName,
                         vocab);
}

Range vocabulary_part(const StepContext& context) {
  return tensor_part(context.rank, context.spec.stored_vocab, "the vocabulary");
}

}  // namespace

void require_tokens(const ModelSpec& spec, std::span<const Row> rows) {
  for (const Row& row : rows) {
    if (row.token >= 0 && static_cast<std::size_t>(row.token) < spec.vocab) continue;
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("token id {} is not within the vocabulary of {}", row.token, spec.vocab));
  }
}

TokenEmbedding::TokenEmbedding(const WeightStore& weights, const StepContext& context)
    : vocab_(vocabulary_part(context)), weight_(read_embedding(weights, context.spec, vocab_)) {}

Matrix TokenEmbedding::embed(const StepContext& context, std::span<const Row> rows) const {
  require_tokens(context.spec, rows);
  Matrix hidden(rows.size(), context.spec.hidden);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const auto token = static_cast<std::size_t>(rows[r].token);
    if (token - vocab_.first < vocab_.count) {
      decode_row(weight_.weight(), token - vocab_.first, hidden.row(r));
    }
  }
  context.comm.all_reduce({.group = Group::kTensor, .name = "embedding sum"}, hidden.values());
  round_between(context.profile, hidden.values());
  return hidden;
}

OutputHead::OutputHead(const WeightStore& weights, const StepContext& context,
                       const TokenEmbedding* embedding)
    : vocab_(vocabulary_part(context)) {
  if (!context.spec.tied_head) {
    weight_ = read_vocabulary(weights, context.spec, kHead, vocab_);
  } else if (embedding != nullptr) {
    weight_ = embedding->weight();
  } else {
    weight_ = read_embedding(weights, context.spec, vocab_);
  }
  norm_ = weights.vector("model.norm.weight", {context.spec.hidden});
}

Matrix OutputHead::final_norm(const StepContext& context, const Matrix& hidden) const {
  return rms_normed(context, hidden, norm_);
}

Matrix OutputHead::logits(const StepContext& context, const Matrix& normed) const {
  Matrix mine(normed.rows(), vocab_.count);
  weight_.apply(normed.view(), mine.view(), context.threads);
  const std::size_t vocab = context.spec.vocab;
  if (vocab_.count == vocab) {
    require_finite(mine, context.spec.layers, "the head");
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
  require_finite(logits, context.spec.layers, "the head");
  return logits;
}

}  // namespace ingot::inference
