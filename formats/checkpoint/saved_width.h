#pragma once

#include <optional>

#include "formats/storage/tensor_source.h"

// Plain checkpoints, and those that training programs saved in more bits than config.json says.

namespace ingot::formats {

/// The plain scheme that `dtype` of config.json names, bf16 or f16, where linear weights are stored
/// in more bits; else nullopt.
std::optional<SchemeId> narrower_dtype(const TensorSource& source);

/// True if a tensor is plain and has more bits than `to`, and in releases of its family it has not
/// (TensorRule::synth_dtype: routers and their biases often have more bits). False for scales of
/// caches, and for tensors that no row has.
bool is_saved_wider(const LogicalTensor& tensor, SchemeId to);

/// True if no tensor is quantized, in whatever form its codes are viewed.
bool has_plain_only(const TensorSource& source);

}  // namespace ingot::formats
