#pragma once

#include <utility>
#include <vector>

#include "inference/base/matrix.h"
#include "inference/model/step/step.h"
#include "inference/weights/block_weights.h"

namespace ingot::inference {

/// Inputs that are mixed of sources: what went into each run of layers, and the sum of the run that
/// is not finished, in place of one sum over all layers. Each query q makes an input
///   sum over sources s of softmax_s(q . n(s) / root of the width) n(s), n an RMS norm without
///   weights
/// Source: transformers 5.24, inkling2 (attention residuals).
class SourceMix {
 public:
  /// Makes no input.
  SourceMix() = default;
  /// Reads `n` queries.
  SourceMix(const BlockWeights& weights, const StepContext& context, WeightRole role,
            std::size_t n = 1);

  explicit SourceMix(std::vector<float> queries) : queries_(std::move(queries)) {}

  [[nodiscard]] bool empty() const { return queries_.empty(); }
  /// The inputs side by side, [rows, queries x hidden]. `sources` has those before `sum`, of which
  /// the first `n` count.
  [[nodiscard]] Matrix inputs(Profile profile, const Matrix& sources, std::size_t n,
                              const Matrix& sum) const;

 private:
  std::vector<float> queries_;
};

}  // namespace ingot::inference
