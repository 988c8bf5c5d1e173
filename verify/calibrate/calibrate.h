#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "formats/records/calibration.h"
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
  std::uint64_t n_bytes = 0;  ///< bytes of the files
  /// Their statistics are those of their peers: over the experts of the layer that were chosen, the
  /// largest input_amax and input_max, the least input_min, and per column the largest mean square
  /// of the same matrix; the blocks of moments are the layer's. Their expert_tokens stay 0.
  std::vector<UnvisitedExperts> unvisited;
};

/// Disk that a calibration takes.
struct CalibrationNeed {
  std::uint64_t statistics = 0;  ///< bytes of the files, at most
  std::uint64_t spilled = 0;     ///< bytes of activations, until it ends
  std::size_t batches = 1;       ///< batches of documents that go through a layer one by one
  std::uint64_t steps_done = 0, steps = 0;  ///< layers that an earlier run has done, and all
};

struct CalibrationOptions {
  /// Products of a directory besides ranges, mean squares and counts.
  bool cache = true, blocks = true, moments = true;
  /// Tokens that a layer's moments count for in the blocks of an expert; 0: these are its own.
  std::uint64_t shrinkage = formats::kUsualShrinkage;
  bool resume = false;  ///< an earlier run that was killed or stopped is continued
  /// A conversion of the source. Each layer is given what the layers of this model before it make
  /// in profile native, weights and inputs quantized; measured is the source's layer. Null: layers
  /// are given what the source makes. Must outlive the call.
  const formats::Checkpoint* quantized = nullptr;
  std::uint64_t quantized_memory = 0;  ///< bytes of memory that reading `quantized` takes
  std::string tool_version = {};
  /// Called before anything is written.
  std::function<void(const CalibrationNeed&)> announce = {};
};

/// Runs the documents through the model in profile f32, layer by layer, each layer read once for a
/// batch of documents after the other, and writes statistics of its linears' inputs to `out`: a
/// directory (docs/formats.md, "Activation statistics"), or where its name ends in `.safetensors`
/// one file with ranges, mean squares and counts. The bytes are the same for any number of threads
/// and any `mem_limit`. The MTP layer is given every token's hidden state with the next token.
/// Throws kLimit, with the memory that would be enough, when one layer and the largest batch do not
/// fit into `mem_limit` (for one file: all documents); kNoSpace when the disk lacks room;
/// kInvalidArgument without documents, or for empty ones; kExists when `out` is there; kMismatch
/// for a `quantized` model of other shapes; kUnsupported when an MTP layer gets no token (documents
/// of two and more are needed); kInterrupted when stopped. Then nothing is left behind, except that
/// a directory whose run is stopped by a signal, or killed, can be resumed: each finished layer is
/// kept, with the hidden states behind it.
CalibrationReport calibrate(const formats::Checkpoint& source, std::span<const Prompt> documents,
                            const std::filesystem::path& out, const RunOptions& options,
                            const CalibrationOptions& what = {});

}  // namespace ingot::verify
