#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "formats/checkpoint/checkpoint.h"
#include "inference/base/profile.h"
#include "verify/layers/layer_check.h"
#include "verify/outputs/greedy_check.h"

namespace ingot::verify {

/// A model compared with recorded activations of it.
struct ReferenceReport {
  std::string recorded_by;  ///< program that recorded them, as the file says
  /// Source profile "recorded". Only layers whose output was recorded for some prompt are there;
  /// where the state before a layer was not, `isolated` continues the model's own. Routers and
  /// indexers are not compared.
  LayersReport layers;
  /// For prompts with recorded answers. A source's gap is that of the recorded logits for the first
  /// token; after it, where none are recorded, the model's own.
  std::optional<GreedyReport> greedy;
};

/// Compares a checkpoint with activations recorded elsewhere (docs/verify.md has the form of the
/// file). Layers are streamed as in compare_layers, in `output_profile`. Where answers part at
/// token n > 0, the limit is the smaller of `gap` and twice the largest difference of logits for
/// the first token, over prompts that agree there. kCorrupt, kShapeMismatch and kNonFinite naming
/// the tensor of a bad file; kLimit, with the memory that would suffice.
ReferenceReport compare_reference(const formats::Checkpoint& model,
                                  const std::filesystem::path& recorded, const RunOptions& options);

}  // namespace ingot::verify
