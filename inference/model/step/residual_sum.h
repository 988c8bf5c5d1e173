#pragma once

#include <vector>

#include "inference/base/matrix.h"
#include "inference/base/profile.h"
#include "inference/model/step/step.h"
#include "inference/weights/block_weights.h"

namespace ingot::inference {

/// How the output of a block joins the stream before it: a sum, whose terms may have a factor, or
/// each value of them a factor and a shift of its own.
class ResidualSum {
 public:
  /// Makes a plain sum.
  ResidualSum() = default;
  /// Reads the factors that the spec or the layer's rows say. A gate g, divided by its temperature,
  /// makes beta = sigmoid(g) of outputs and root(max((1 - beta) (1 + beta), 1e-3)) of the stream
  /// (transformers 5.24, muse_spark).
  ResidualSum(const BlockWeights& weights, const StepContext& context, const BlockSpec& block);

  /// stream <- stream and `output`, rounded once.
  void add(Profile profile, const Matrix& output, Matrix& stream) const;

 private:
  struct Term {
    std::vector<float> factor, shift;  ///< (value + shift) x factor
  };
  float kept_factor_ = 1.0F;
  Term output_, stream_;  ///< factors of values; empty: none
};

}  // namespace ingot::inference
