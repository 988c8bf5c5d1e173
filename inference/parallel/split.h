#pragma once

#include <cstddef>
#include <string_view>

#include "inference/parallel/comm.h"
#include "inference/weights/linear.h"

namespace ingot::inference {

/// The run of `count` equal things that this rank of the tensor group holds. kUnsupported naming
/// `what` when the ranks do not divide them.
Range tensor_part(const RankView& rank, std::size_t count, std::string_view what);

/// The rank's key heads. There may be fewer than ranks: then neighbours share one.
Range key_head_part(const RankView& rank, std::size_t count);

/// The run of `count` experts of this rank of the expert group. kUnsupported, too, unless tensor
/// groups fill expert groups evenly.
Range expert_part(const RankView& rank, std::size_t count);

}  // namespace ingot::inference
