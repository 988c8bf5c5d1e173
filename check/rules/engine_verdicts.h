#pragma once

#include <string>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "formats/dialect/engine_limits.h"

namespace ingot::check {

/// The quantized weights of a checkpoint as engines see them; none of a rank's slices, which no
/// engine loads, nor where the lists of the config cannot be read (rows of their own say so). The
/// names are those of the checkpoint, which must outlive them.
std::vector<formats::EngineWeight> engine_weights(const formats::Checkpoint& checkpoint);

/// Whether an engine loads every weight of a checkpoint in its scheme and dialect.
struct EngineVerdict {
  formats::Engine engine{};
  bool loads = false;
  bool is_known = true;  ///< else it may load it, but nobody has found out
  /// How that is known: the weakest of all weights, and of what is known of their family.
  formats::Evidence evidence = formats::Evidence::kGenerated;
  std::vector<std::string> options;  ///< that it must be started with
  /// What it does not load, the first of such weights, and why; empty when it loads all.
  std::string tensor, reason;
};

/// A verdict per row of formats::engines(), by the rows of engines.h, engine_limits.h and
/// engine_families.h.
std::vector<EngineVerdict> engine_verdicts(const formats::Checkpoint& checkpoint);

}  // namespace ingot::check
