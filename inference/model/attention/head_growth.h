#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "inference/base/matrix.h"
#include "inference/base/profile.h"
#include "inference/weights/block_weights.h"

namespace ingot::inference {

/// Queries that grow with the position, so that attention stays sharp over many keys: those of head
/// h are multiplied by scale[h] log(1 + position) + bias[h]. Source: transformers 5.23,
/// MistralLarge4TextSoftmaxScaling.
class HeadGrowth {
 public:
  /// Leaves queries as they are.
  HeadGrowth() = default;
  HeadGrowth(std::vector<float> scale, std::vector<float> bias)
      : scale_(std::move(scale)), bias_(std::move(bias)) {}
  /// Reads the numbers of the heads `mine`, of `heads` in all.
  HeadGrowth(const BlockWeights& weights, WeightRole scale, WeightRole bias, std::size_t heads,
             Range mine);

  /// Multiplies `queries` [rows, heads x width] by the factors of their positions. In FP32; unless
  /// the profile is kF32 the logarithm, its product, the sum and the queries are each rounded to
  /// BF16.
  void apply(Profile profile, std::span<const std::uint32_t> positions, Matrix& queries) const;

 private:
  std::vector<float> scale_, bias_;
};

}  // namespace ingot::inference
