#pragma once

#include <optional>
#include <string>
#include <vector>

#include "inference/model/attention/gqa_attention.h"
#include "inference/model/attention/mla_attention.h"
#include "inference/model/feed_forward/mixture.h"
#include "inference/model/feed_forward/mlp.h"

namespace ingot::inference {

/// One pre-norm block: a = x + Attention(norm(x)), y = a + Ffn(norm(a)). The kind of attention and
/// whether the feed-forward part is dense or a mixture are the spec's.
class DecoderLayer {
 public:
  /// Layer `layer` of the checkpoint, kept as layer `cache_layer` of its cache.
  DecoderLayer(const WeightStore& weights, const StepContext& context, std::uint32_t layer,
               std::size_t cache_layer, ExpertStore* experts);

  /// hidden <- this layer of hidden. The cache has room for the rows.
  void forward(const StepContext& context, Matrix& hidden, const StepRows& rows, KvCache& cache,
               Selection& selection, const Taps& taps) const;

 private:
  std::uint32_t layer_;
  std::size_t cache_layer_;
  std::vector<float> input_norm_, post_norm_;
  std::optional<MlaAttention> mla_;
  std::optional<GqaAttention> gqa_;
  std::optional<Mlp> dense_;
  std::optional<Mixture> mixture_;
};

}  // namespace ingot::inference
