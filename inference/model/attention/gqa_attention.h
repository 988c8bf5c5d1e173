#pragma once

#include <string>
#include <vector>

#include "inference/base/matrix.h"
#include "inference/model/step/norm.h"
#include "inference/model/step/step.h"
#include "inference/weights/linear.h"
#include "inference/weights/weight_store.h"

namespace ingot::inference {

/// Grouped-query attention with a norm per head on queries and keys before rope (model reference,
/// 13.2). A rank has its share of the heads and the key heads that they read.
class GqaAttention {
 public:
  /// `prefix` as in `model.layers.3.self_attn.`.
  GqaAttention(const WeightStore& weights, const StepContext& context, const std::string& prefix);

  /// FP32 sums of o_proj's columns for normalized input `x`: the whole once reduced over the tensor
  /// group. Caches the rows first.
  Matrix partial(const LayerStep& step, const Matrix& x) const;

 private:
  /// Heads of one projection, normalized and rotated.
  Matrix heads(const StepContext& context, const Linear& projection, std::span<const float> norm,
               const Matrix& x, const RopeAngles& angles) const;

  std::size_t heads_ = 0, kv_heads_ = 0;
  Linear q_, k_, v_, o_;
  std::vector<float> q_norm_, k_norm_;
};

}  // namespace ingot::inference
