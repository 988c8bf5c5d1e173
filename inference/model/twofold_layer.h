#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "inference/model/attention/attention.h"
#include "inference/model/feed_forward/mixture.h"
#include "inference/model/step/step.h"

namespace ingot::inference {

/// A layer of two halves, each latent attention and a dense MLP, and a mixture of experts that runs
/// past the second: it takes what the first MLP takes, and its output is added at the end. What the
/// halves cache stands in streams one after the other. Source: transformers 5.23, longcat_flash.
class TwofoldLayer {
 public:
  TwofoldLayer(const WeightStore& weights, const StepContext& context, std::uint32_t layer,
               ExpertStore& experts);

  /// hidden <- this layer of hidden. The cache has room for the rows.
  void forward(const LayerStep& step, Matrix& hidden) const;

 private:
  struct Half {
    std::vector<float> input_norm, post_norm;
    MlaAttention attention;
    Mlp mlp;
  };
  std::vector<Half> halves_;
  Mixture mixture_;
};

}  // namespace ingot::inference
