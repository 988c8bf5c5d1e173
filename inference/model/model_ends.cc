#include "inference/model/model_ends.h"

#include <algorithm>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "inference/model/step/norm.h"
#include "inference/model/step/step.h"
#include "inference/parallel/comm.h"

namespace ingot::inference {
namespace {

constexpr std::string_view kEmbedding = "model.embed_tokens.weight";
constexpr std::string_view kHead = "lm_head.weight";

Linear read_vocabulary(const WeightStore& weights, const ModelSpec& spec, std::string_view name,
                       Range vocab) {
  return weights.linear(name, spec.vocab, spec.hidden, vocab, {0, spec.hidden});
}

}  // namespace

TokenEmbedding::TokenEmbedding(const WeightStore& weights, const StepContext& context)
    : vocab_(tensor_part(context.rank, context.spec.vocab, "the vocabulary")),
      weight_(read_vocabulary(weights, context.spec, kEmbedding, vocab_)) {}

Matrix TokenEmbedding::embed(const StepContext& context, std::span<const Row> rows) const {
  Matrix hidden(rows.size(), context.spec.hidden);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const auto token = static_cast<std::size_t>(rows[r].token);
    if (rows[r].token < 0 || token >= context.spec.vocab) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("token id {} is not within the vocabulary of {}", rows[r].token,
                              context.spec.vocab));
    }
    if (token - vocab_.first < vocab_.count) {
      decode_row(weight_.weight(), token - vocab_.first, hidden.row(r));
    }
  }
  context.comm.all_reduce(Group::kTensor, hidden.values());
  round_between(context.profile, hidden.values());
  return hidden;
}

OutputHead::OutputHead(const WeightStore& weights, const StepContext& context,
                       const TokenEmbedding* embedding)
    : vocab_(tensor_part(context.rank, context.spec.vocab, "the vocabulary")) {
  if (!context.spec.tied_head) {
    weight_ = read_vocabulary(weights, context.spec, kHead, vocab_);
  } else if (embedding != nullptr) {
    weight_ = embedding->weight();
  } else {
    weight_ = read_vocabulary(weights, context.spec, kEmbedding, vocab_);
  }
  norm_ = weights.vector("model.norm.weight", {context.spec.hidden});
}

Matrix OutputHead::final_norm(const StepContext& context, const Matrix& hidden) const {
  return rms_normed(context, hidden, norm_);
}

Matrix OutputHead::logits(const StepContext& context, const Matrix& normed) const {
  Matrix mine(normed.rows(), vocab_.count);
  weight_.apply(normed.view(), mine.view(), context.threads);
  if (context.rank.tp_size == 1) {
    require_finite(mine, context.spec.layers, "the head");
    return mine;
  }
  const std::vector<float> all = context.comm.all_gather(Group::kTensor, mine.values());
  Matrix logits(normed.rows(), context.spec.vocab);
  INGOT_CHECK(all.size() == logits.values().size());
  for (std::size_t rank = 0; rank < context.rank.tp_size; ++rank) {
    for (std::size_t r = 0; r < normed.rows(); ++r) {
      const auto at =
          all.begin() + static_cast<std::ptrdiff_t>((rank * normed.rows() + r) * vocab_.count);
      std::copy_n(at, vocab_.count,
                  logits.row(r).begin() + static_cast<std::ptrdiff_t>(rank * vocab_.count));
    }
  }
  require_finite(logits, context.spec.layers, "the head");
  return logits;
}

}  // namespace ingot::inference
