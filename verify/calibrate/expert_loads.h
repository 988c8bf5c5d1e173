#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "verify/outputs/prompts.h"

namespace ingot::verify {

/// Tokens that each routed expert was given, by layer with experts.
using ExpertLoads = std::map<std::uint32_t, std::vector<std::uint64_t>>;

/// Runs the documents through the model in profile f32, each layer read once, and counts the
/// choices of its routers; the MTP layer is given every token's hidden state with the next token.
/// The same for any number of threads. kInvalidArgument without documents, or for empty ones;
/// kUnsupported for a model without experts, or without a forward pass; kLimit when hidden states
/// and one layer do not fit into `mem_limit`; kInterrupted when stopped.
ExpertLoads count_expert_loads(const formats::Checkpoint& source, std::span<const Prompt> documents,
                               const RunOptions& options);

/// Reads counts: the `LAYER.expert_tokens` of statistics of activations, a directory or one file,
/// or JSON {"layers": {"3": [tokens, ...]}}. kCorrupt for anything else, kMismatch for a directory
/// of another model, another number of experts than the model has, a layer without experts, or one
/// that is named twice.
ExpertLoads read_expert_loads(const std::filesystem::path& path, const formats::Checkpoint& source);

}  // namespace ingot::verify
