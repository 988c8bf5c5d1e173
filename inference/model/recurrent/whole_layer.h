#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "inference/parallel/rank_view.h"
#include "inference/weights/block_weights.h"

// What recurrent mixers share when they are loaded.

namespace ingot::inference {

/// kUnsupported, naming the layer, on more than one rank of a tensor group: a recurrent mixer is
/// computed whole.
void require_one_tensor_rank(const RankView& rank, std::uint32_t layer);

/// A vector of `n` values, whatever dimensions of one value the source gives it.
std::vector<float> any_shape(const BlockWeights& weights, WeightRole role, std::size_t n);

/// A bias of `n` values; empty without one, unless it is promised.
std::vector<float> bias_of(const BlockWeights& weights, bool is_promised, WeightRole role,
                           std::size_t n);

}  // namespace ingot::inference
