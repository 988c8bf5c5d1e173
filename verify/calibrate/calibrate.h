#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "verify/outputs/prompts.h"

namespace ingot::verify {

/// Experts of a layer that no token chose, ascending.
struct UnvisitedExperts {
  std::uint32_t layer = 0;
  std::vector<std::uint32_t> experts;
};

struct CalibrationReport {
  std::uint64_t documents = 0, tokens = 0;
  std::size_t modules = 0;
  /// Their statistics are those of their peers: over the experts of the layer that were chosen, the
  /// largest input_amax and input_max, the least input_min, and per column the largest mean square
  /// of the same matrix. Their expert_tokens stay 0.
  std::vector<UnvisitedExperts> unvisited;
};

/// Runs the documents through the model in profile f32, layer by layer, each layer read once, and
/// writes statistics of its linears' inputs to `out`, a file of activation statistics
/// (docs/formats.md): the same bytes for any number of threads. The MTP layer is given every
/// token's hidden state with the next token. Hidden states of all tokens stay in memory: throws
/// kLimit, with the memory that would be enough, when they and one layer do not fit into
/// `mem_limit`. kInvalidArgument without documents, or for empty ones; kExists when `out` is there;
/// kUnsupported when an MTP layer gets no token (documents of two and more are needed);
/// kInterrupted when stopped. Then no file is left behind.
CalibrationReport calibrate(const formats::Checkpoint& source, std::span<const Prompt> documents,
                            const std::filesystem::path& out, const RunOptions& options);

}  // namespace ingot::verify
