#pragma once

#include <vector>

#include "inference/base/matrix.h"
#include "inference/model/step/norm.h"
#include "inference/model/step/step.h"
#include "inference/weights/block_weights.h"
#include "inference/weights/linear.h"

namespace ingot::inference {

/// Streams of which a layer computes one, the active one a, and predicts the others (AltUp, arXiv
/// 2301.13310). Source: transformers 5.24, gemma3n. Of n streams x[j] side by side:
///
///   m(s)  = tanh(router (norm(s) / hidden))                       n values
///   p[j]  = x[j] + sum over i of (predict m(x[a]))[j n + i] x[i]
///   x'[j] = p[j] + (layer(p[a]) - p[a]) ((correct m(layer(p[a])))[j] + 1)
class PredictedStreams {
 public:
  PredictedStreams(const BlockWeights& weights, const StepContext& context);

  /// Puts predictions in place of the streams; returns the active one.
  [[nodiscard]] Matrix predict(const StepContext& context, Matrix& streams) const;
  /// Corrects predictions by what the layer made of the active one. Returns the corrected active
  /// stream, times its factors where the model has them.
  [[nodiscard]] Matrix correct(const StepContext& context, const Matrix& computed,
                               Matrix& streams) const;

 private:
  [[nodiscard]] Matrix modalities(const StepContext& context, const Matrix& stream) const;
  [[nodiscard]] Matrix active_of(const StepContext& context, const Matrix& streams) const;

  HiddenNorm norm_;
  Linear router_, predict_, correct_;
  std::vector<float> factors_;  ///< factors of the corrected active stream; empty: none
};

/// Adds `what` to all streams but the first.
void add_behind_first(const StepContext& context, const Matrix& what, Matrix& streams);

/// The streams' ends: a matrix of each but the first makes it of the embedding, and another one
/// turns it back before the mean of all. Both scale it to the first one's length.
class StreamEnds {
 public:
  StreamEnds() = default;
  StreamEnds(const BlockWeights& weights, const StepContext& context, formats::FineRole role);

  [[nodiscard]] bool empty() const { return matrices_.empty(); }
  /// The streams of an embedding.
  [[nodiscard]] Matrix spread(const StepContext& context, const Matrix& embedded) const;
  /// Their mean.
  [[nodiscard]] Matrix joined(const StepContext& context, const Matrix& streams) const;

 private:
  std::vector<Linear> matrices_;
};

}  // namespace ingot::inference
