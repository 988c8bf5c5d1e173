#pragma once

#include <optional>
#include <span>
#include <vector>

#include "inference/base/matrix.h"
#include "inference/model/step/gated_streams.h"
#include "inference/model/step/hyper_connection.h"
#include "inference/model/step/layer_inputs.h"
#include "inference/model/step/norm.h"
#include "inference/model/step/predicted_streams.h"
#include "inference/model/step/source_mix.h"
#include "inference/model/step/step.h"
#include "inference/weights/linear.h"
#include "inference/weights/weight_store.h"

namespace ingot::inference {

/// Throws kInvalidArgument for an id outside of the vocabulary.
void require_tokens(const ModelSpec& spec, std::span<const Row> rows);

/// The embedding, or the rows of it that a rank holds. Where only the MTP layer's copy is here, as
/// on the last stage of a pipeline, it is that.
class TokenEmbedding {
 public:
  TokenEmbedding(const WeightStore& weights, const StepContext& context);

  /// Embeds one row per token, reduced over the tensor group, in every stream of a model that has
  /// some, with the inputs of layers; what else they hand on begins as 0. Throws as
  /// require_tokens().
  [[nodiscard]] Matrix embed(const StepContext& context, std::span<const Row> rows) const;
  /// Returns the weight, which a tied head shares.
  [[nodiscard]] const Linear& weight() const { return weight_; }

 private:
  Range vocab_;  // rows of this rank
  Linear weight_;
  std::vector<float> factors_, shifts_;  // (row + shift) x factor; empty: none
  HiddenNorm norm_;                      // norm of an embedded row; empty: none
  std::optional<LayerInputs> layer_inputs_;
  StreamEnds spread_;  // makes the streams; empty: they are copies
};

/// The final norm and the head, or the rows of it that a rank holds. Logits are gathered over the
/// tensor group; rows that were only padded give none.
class OutputHead {
 public:
  /// Reads norm and head. `embedding` is what a tied head shares; null: it is read again.
  OutputHead(const WeightStore& weights, const StepContext& context,
             const TokenEmbedding* embedding);

  /// Norms each row's stream, or what its streams are collapsed to: [rows, hidden].
  [[nodiscard]] Matrix final_norm(const StepContext& context, const Matrix& states) const;
  /// Logits [rows, vocab] of rows that final_norm (or an MTP layer) returned. Throws kNonFinite.
  [[nodiscard]] Matrix logits(const StepContext& context, const Matrix& normed) const;

 private:
  Range vocab_;
  Linear weight_;
  std::vector<float> bias_;  ///< bias of the logits; empty: none
  HiddenNorm norm_;
  HyperWeights streams_;        ///< weights that collapse the streams, where the model has them
  GatedStreams gated_streams_;  ///< connections that collapse the streams, in place of the norm
  SourceMix sources_;           ///< makes the norm's input; empty: it is the stream
  StreamEnds join_;             ///< joins predicted streams
};

}  // namespace ingot::inference
