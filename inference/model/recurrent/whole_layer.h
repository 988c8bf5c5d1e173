#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "inference/parallel/rank_view.h"
#include "inference/weights/weight_store.h"

// What recurrent mixers share when they are loaded.

namespace ingot::inference {

/// kUnsupported, naming the layer, on more than one rank of a tensor group: a recurrent mixer is
/// computed whole.
void require_one_tensor_rank(const RankView& rank, std::string_view prefix);

/// prefix + the first of `names` that `layer` has or must have, or the first of them where it has
/// none.
std::string first_of(const WeightStore& weights, std::uint32_t layer, const std::string& prefix,
                     std::initializer_list<std::string_view> names);

/// A vector of `n` values, whatever dimensions of one value the source gives it.
std::vector<float> any_shape(const WeightStore& weights, const std::string& name, std::size_t n);

}  // namespace ingot::inference
