#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "formats/checkpoint/checkpoint.h"
#include "inference/generate/memory_plan.h"
#include "inference/model/step/step.h"

namespace ingot::verify {

/// How a memory limit is shared while two models pass through the same prompts layer by layer. One
/// of them works at a time, but for the heads, of which both are needed for the logits of a token.
struct LockstepMemory {
  std::uint64_t source_weights = 0, output_weights = 0;  ///< LayerStreamOptions::weight_limit
  std::size_t head_rows = 0;  ///< tokens whose logits of both sides are in memory at once
};

/// What one side needs.
struct LockstepSide {
  const formats::Checkpoint& model;
  inference::Profile profile;
  std::size_t copies = 1;  ///< sequences per prompt that pass through it at once
};

/// `lengths` are those of the prompts. Hidden states of all of them are held: the source's own, and
/// of the output as many copies as it runs. kLimit, with what would be enough.
LockstepMemory share_memory(const LockstepSide& source, const LockstepSide& output,
                            const inference::ModelSpec& spec, std::span<const std::size_t> lengths,
                            std::size_t threads, std::uint64_t limit);

/// Bytes of the head, as stored.
std::uint64_t head_bytes(const formats::Checkpoint& model, const inference::ModelSpec& spec);

}  // namespace ingot::verify
