#pragma once

#include <span>
#include <string>
#include <vector>

#include "inference/base/matrix.h"
#include "inference/model/step/norm.h"
#include "inference/model/step/step.h"
#include "inference/weights/linear.h"
#include "inference/weights/weight_store.h"

namespace ingot::inference {

/// The lightning indexer (model reference, 5): which past tokens a row attends to, one choice for
/// all heads. All ranks compute all of it.
class Indexer {
 public:
  /// `prefix` as in `model.layers.3.self_attn.indexer.`.
  Indexer(const WeightStore& weights, const StepContext& context, const std::string& prefix);

  /// Writes the rows' index keys to the cache and fills `selection`, one entry per row: nothing for
  /// rows that see no more than topk tokens. `x` is the attention's input, `latent_queries` the
  /// normalized query latent. Scores are sums over ascending heads; of equal scores the lower
  /// position is taken.
  void select(const LayerStep& step, const Matrix& x, const Matrix& latent_queries) const;

 private:
  void prepare(const StepContext& context, const StepRows& rows, Matrix& heads) const;

  Linear queries_, keys_, weights_;
  std::vector<float> key_norm_, key_bias_;
};

/// y_b = n^-1/2 * sum over a of (-1)^popcount(a & b) * x_a, in place; n = x.size() is a power of
/// two. In FP32, by halves: strides 1, 2, 4, ... Its own inverse.
void hadamard(std::span<float> x);

}  // namespace ingot::inference
