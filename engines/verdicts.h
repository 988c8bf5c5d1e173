#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engines/limits.h"
#include "engines/modules/engine_input.h"
#include "formats/checkpoint/checkpoint.h"

namespace ingot::engines {

/// How a checkpoint is served, and what its headers and JSON do not tell.
struct Serving {
  std::uint64_t tensor_parallel = 1;     ///< ranks that cut every weight
  bool has_power_of_two_scales = false;  ///< scales of every kFp8Block tensor
};

/// The weights of a checkpoint as engines see them: quantized ones, and plain ones that a limit is
/// about; none of a rank's slices, which no engine loads, nor where the lists of the config cannot
/// be read (rows of their own say so). `input` is the checkpoint's. The names are those of the
/// checkpoint, which must outlive them.
std::vector<EngineWeight> engine_weights(const formats::Checkpoint& checkpoint,
                                         const EngineInput& input, const Serving& serving);

/// Answer whether an engine loads every weight of a checkpoint in its scheme and dialect.
struct EngineVerdict {
  const EngineRow* engine = nullptr;
  bool loads = false;
  bool is_known = true;    ///< false: it may load it, but that is not known
  bool is_silent = false;  ///< true: no error is shown, and the engine computes garbage
  /// How that is known: the weakest of all weights, and of what is known of their family.
  Evidence evidence = Evidence::kOnGpu;
  std::vector<std::string> options;  ///< options that it must be started with
  /// The first weight that the engine does not load, and the reason; empty when it loads all.
  std::string tensor, reason;
  /// Notes on its treatment of the weights that it loads, a sentence each.
  std::vector<std::string> notes;
};
/// "does not load it", or the words for what an engine does in silence.
std::string_view failure_text(const EngineVerdict& verdict);

/// A verdict of one version, by its rows; `input` is the checkpoint's.
EngineVerdict engine_verdict(const formats::Checkpoint& checkpoint, const EngineInput& input,
                             const EngineRow& engine, const Serving& serving);
/// Returns the verdicts of several versions, in their order; reads the weights once.
std::vector<EngineVerdict> engine_verdicts(const formats::Checkpoint& checkpoint,
                                           const EngineInput& input,
                                           std::span<const EngineRow* const> engines,
                                           const Serving& serving);

}  // namespace ingot::engines
