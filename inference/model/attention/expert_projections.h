#pragma once

#include <cstddef>
#include <vector>

#include "inference/base/matrix.h"
#include "inference/model/step/router.h"
#include "inference/model/step/step.h"
#include "inference/weights/block_weights.h"
#include "inference/weights/linear.h"

namespace ingot::inference {

/// Queries and outputs of attention by experts (mixture of attention heads; transformers 5.24,
/// jetmoe): a router chooses some of them for each token. Each makes one query for every key head,
/// and its output projection takes what they found; the outputs are weighed by the softmax over the
/// chosen logits, and a bias is added.
class ExpertProjections {
 public:
  /// Throws kUnsupported on more than one rank of a tensor group.
  ExpertProjections(const BlockWeights& weights, const StepContext& context,
                    const GroupedSpec& spec);

  [[nodiscard]] Routing choose(const StepContext& context, const Matrix& x) const;
  /// [rows, key heads x chosen experts x head_dim]: the heads that read a key head are side by
  /// side.
  [[nodiscard]] Matrix queries(const StepContext& context, const Matrix& x,
                               const Routing& routing) const;
  /// FP32 sums for heads in the order of queries().
  [[nodiscard]] Matrix outputs(const StepContext& context, const Matrix& attended,
                               const Routing& routing) const;

 private:
  RouterSpec router_spec_;
  std::size_t kv_heads_, head_dim_;
  Linear router_;
  std::vector<Linear> in_, out_;  ///< one per expert
  std::vector<float> bias_;
};

}  // namespace ingot::inference
