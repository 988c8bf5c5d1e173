#pragma once

#include <vector>

#include "inference/base/matrix.h"
#include "inference/model/step/step.h"
#include "inference/weights/block_weights.h"
#include "inference/weights/linear.h"

namespace ingot::inference {

/// A router that is an MLP over a state of its own, to which that of the layer before is added:
///   z = down x + b + memory * z before
///   logits = out gelu(second gelu(first norm(z))), with exact gelu
/// All ranks compute all of it. Source: transformers 5.24, zaya.
class RouterMlp {
 public:
  /// Reads all but the last matrix, which is the router's of any layer. The first layer has no
  /// factors of an earlier state.
  RouterMlp(const BlockWeights& weights, const StepContext& context, const RouterSpec& spec);

  /// The input of the last matrix. `state` is that of the layer before, and becomes z.
  [[nodiscard]] Matrix inner(const StepContext& context, const Matrix& x, Matrix& state) const;

 private:
  Linear down_, first_, second_;
  std::vector<float> down_bias_, first_bias_, second_bias_, norm_, memory_;
};

}  // namespace ingot::inference
