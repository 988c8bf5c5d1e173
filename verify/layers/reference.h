#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "formats/checkpoint/checkpoint.h"
#include "inference/base/profile.h"
#include "verify/layers/layer_check.h"
#include "verify/outputs/greedy_check.h"

namespace ingot::verify {

struct ReferenceOptions {
  inference::Profile profile = inference::Profile::kF32;
  double gap = 1.0;  ///< as GreedyOptions::gap
  std::size_t threads = 1;
  std::uint64_t mem_limit = std::uint64_t{4} << 30;
  std::function<void(std::uint64_t, std::uint64_t)> progress = {};  ///< layers done, in all
  std::function<bool()> stop_requested = {};
};

/// A model beside what somebody else recorded of it.
struct ReferenceReport {
  std::string recorded_by;  ///< as the file says
  /// Source profile "recorded". Only layers whose output was recorded for some prompt are there;
  /// where the state before a layer was not, `isolated` continues the model's own. Nothing is known
  /// of routers and indexers.
  LayersReport layers;
  /// For prompts with recorded answers. A source's gap is that of the recorded logits for the first
  /// token; after it, where none are recorded, the model's own.
  std::optional<GreedyReport> greedy;
};

/// Compares a checkpoint with activations recorded elsewhere (see RecordedActivations for the
/// file). Layers are streamed as in compare_layers. Where answers part at token n > 0, the limit is
/// the smaller of `gap` and twice the largest difference of logits for the first token, over
/// prompts that agree there. kCorrupt, kShapeMismatch and kNonFinite naming the tensor of a bad
/// file; kLimit with what would be enough.
ReferenceReport compare_reference(const formats::Checkpoint& model,
                                  const std::filesystem::path& recorded,
                                  const ReferenceOptions& options);

}  // namespace ingot::verify
