#pragma once

#include <vector>

#include "inference/model/decoder_layer.h"
#include "inference/model/step/model_cache.h"
#include "inference/weights/linear.h"

namespace ingot::inference {

/// The layer for multi-token prediction: a decoder layer over the embedding of the next token and
/// the hidden state, each normed, joined and projected (model reference, 7.1).
class MtpLayer {
 public:
  /// Whether the source has one. A promised layer of which no tensor is there was left out on
  /// purpose; one of which some are there must be whole.
  static bool is_in(const WeightStore& weights, const ModelSpec& spec);

  /// Kept as layer 0 of its cache.
  MtpLayer(const WeightStore& weights, const StepContext& context, ExpertStore* experts);

  /// `embedded` is the embedding of the next tokens, `normed` what the final norm returned. Returns
  /// the layer's output after its own norm. The cache has room for the rows.
  [[nodiscard]] Matrix forward(const StepContext& context, const Matrix& embedded,
                               const Matrix& normed, const StepRows& rows, KvCache& cache,
                               Selection& selection, const Taps& taps) const;

 private:
  std::vector<float> embedding_norm_, hidden_norm_, head_norm_;
  Linear project_;
  DecoderLayer layer_;
};

}  // namespace ingot::inference
