#pragma once

#include <cstdint>
#include <optional>

#include "convert/plan/plan.h"
#include "convert/recipe/recipe.h"
#include "formats/checkpoint/checkpoint.h"

namespace ingot::convert {

/// The output of a plan as a checkpoint before a byte of it is written: what a reader would see of
/// its headers and of the JSON beside them, without the bytes of tensors. Of layout `ranks` the
/// directory of `rank`. Not of layout deepseek-mp, whose files no reader opens as one checkpoint.
/// The plan and the source must outlive it. Throws what Checkpoint::open throws of such an output.
formats::Checkpoint planned_checkpoint(const Plan& plan, std::optional<std::uint32_t> rank,
                                       std::size_t threads);

}  // namespace ingot::convert
