#pragma once

#include <string>

#include "inference/base/matrix.h"
#include "inference/model/step/step.h"
#include "inference/weights/linear.h"
#include "inference/weights/weight_store.h"

namespace ingot::inference {

/// down(silu(gate x) * up x), or a tensor-parallel part of it: some rows of gate and up, the same
/// columns of down.
struct Mlp {
  Linear gate, up, down;

  /// `prefix` as in `model.layers.0.mlp.`; `intermediate` of the whole.
  static Mlp load(const WeightStore& weights, const StepContext& context, const std::string& prefix,
                  std::size_t intermediate);

  /// FP32 sums of down's columns: the whole once reduced over the tensor group.
  [[nodiscard]] Matrix partial(const StepContext& context, const Matrix& x) const;
};

}  // namespace ingot::inference
