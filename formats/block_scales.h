#pragma once

#include <vector>

#include "formats/tensor_source.h"

namespace ingot::formats {

/// What scales are accepted.
struct ScalePolicy {
  bool allow_zero = false;  ///< zero decodes to zeros; a user may know that a block is dead
};

/// The block scales of a tensor as F32, row-major over the whole scale tensor: F32 as stored, BF16
/// and E8M0 widened exactly. Every scale must be finite and above zero (kBadScale with its position
/// and value). Empty for a scheme without scales. Reads formats::Part::kScale whole: 1/16384 of the
/// weight for 128x128 blocks.
std::vector<float> read_block_scales(const TensorSource& source, const LogicalTensor& tensor,
                                     const ScalePolicy& policy = {});

}  // namespace ingot::formats
