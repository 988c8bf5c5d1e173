#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "inference/family/parameters.h"
#include "inference/parallel/rank_view.h"
#include "inference/weights/block_weights.h"

// Parts that recurrent mixers share.

namespace ingot::inference {

/// Tokens of a convolution, and its channels.
inline constexpr Limits kKernel = {1, 64};
inline constexpr Limits kChannels = {1, 1 << 20};

/// Values of a sequence's state: the matrices of all heads, and the last inputs of the convolution.
struct RecurrentState {
  std::size_t heads = 0, inputs = 0;
  [[nodiscard]] std::size_t values() const { return heads + inputs; }
};

/// Throws kUnsupported, naming the layer, on more than one rank of a tensor group: a recurrent
/// mixer is computed whole.
void require_one_tensor_rank(const RankView& rank, std::uint32_t layer);

/// Reads a vector of `n` values, whatever dimensions of one value the source gives it.
std::vector<float> any_shape(const BlockWeights& weights, WeightRole role, std::size_t n);

/// Reads a bias of `n` values; empty without one, unless it is promised.
std::vector<float> bias_of(const BlockWeights& weights, bool is_promised, WeightRole role,
                           std::size_t n);

}  // namespace ingot::inference
