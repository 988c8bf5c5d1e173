#pragma once

#include <optional>
#include <string>
#include <vector>

#include "inference/base/matrix.h"
#include "inference/model/attention/indexer.h"
#include "inference/model/step/step.h"
#include "inference/weights/linear.h"
#include "inference/weights/weight_store.h"

namespace ingot::inference {

/// Multi-head latent attention (model reference, 4), dense or over the tokens that the indexer
/// chose. Cached are the normalized latent and the rotated rope key; of a rank's heads the rows of
/// q_b_proj (or q_proj) and kv_b_proj and the columns of o_proj.
class MlaAttention {
 public:
  /// `prefix` as in `model.layers.3.self_attn.`; `own_indexer` where the layer has one.
  MlaAttention(const WeightStore& weights, const StepContext& context, const std::string& prefix,
               bool own_indexer);

  /// FP32 sums of o_proj's columns for normalized input `x` [rows, hidden]: the whole once reduced
  /// over the tensor group. Caches the rows first.
  Matrix partial(const LayerStep& step, const Matrix& x) const;

 private:
  struct Queries;
  Queries project_queries(const StepContext& context, const Matrix& x,
                          const RopeAngles& angles) const;
  void cache_rows(const LayerStep& step, const Matrix& x, const RopeAngles& angles) const;
  void naive(const LayerStep& step, const Matrix& queries, const SequenceRun& run,
             Matrix& out) const;
  void absorbed(const LayerStep& step, const Matrix& queries, const SequenceRun& run,
                Matrix& out) const;

  std::size_t heads_ = 0;  ///< of this rank
  Linear q_, q_a_, q_b_, kv_a_, kv_b_, o_;
  std::vector<float> q_norm_, kv_norm_;
  std::optional<Indexer> indexer_;
};

}  // namespace ingot::inference
