#pragma once

#include <span>
#include <vector>

#include "inference/base/matrix.h"
#include "inference/model/step/step.h"
#include "inference/weights/linear.h"
#include "inference/weights/weight_store.h"

namespace ingot::inference {

/// The embedding, or the rows of it that a rank holds.
class TokenEmbedding {
 public:
  TokenEmbedding(const WeightStore& weights, const StepContext& context);

  /// One row per token. kInvalidArgument for ids outside of the vocabulary.
  [[nodiscard]] Matrix embed(const StepContext& context, std::span<const Row> rows) const;
  /// What a tied head shares.
  [[nodiscard]] const Linear& weight() const { return weight_; }

 private:
  Range vocab_;  // rows of this rank
  Linear weight_;
};

/// The final norm and the head, or the rows of it that a rank holds.
class OutputHead {
 public:
  /// `embedding` is what a tied head shares; null: it is read again.
  OutputHead(const WeightStore& weights, const StepContext& context,
             const TokenEmbedding* embedding);

  [[nodiscard]] Matrix final_norm(const StepContext& context, const Matrix& hidden) const;
  /// Logits [rows, vocab] of rows that final_norm (or an MTP layer) returned. kNonFinite.
  [[nodiscard]] Matrix logits(const StepContext& context, const Matrix& normed) const;

 private:
  Range vocab_;
  Linear weight_;
  std::vector<float> norm_;
};

}  // namespace ingot::inference
