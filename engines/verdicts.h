#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engines/limits.h"
#include "engines/modules/modules.h"
#include "formats/checkpoint/checkpoint.h"

namespace ingot::engines {

/// How a checkpoint is served, and what its headers and JSON do not tell.
struct Serving {
  std::uint64_t tensor_parallel = 1;     ///< ranks that cut every weight
  bool has_power_of_two_scales = false;  ///< scales of every kFp8Block tensor
};

/// The weights of a checkpoint as engines see them: quantized ones, and plain ones that a limit is
/// about, that are stacks, or that have other names than in releases; none of a rank's slices, which no engine loads, nor where the lists of the config cannot
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

// One engine's view of a checkpoint, from headers and JSON only.

/// Linear layers of one kind of which an engine believes the same.
struct BelievedModules {
  std::string name;  ///< name with the numbers that occur: `model.layers.{1-4,6}.mlp.gate`
  std::uint64_t count = 0;
  std::string stored;    ///< scheme, or `plain`
  std::string believed;  ///< scheme that the engine reads
  std::string because;   ///< `ignore`, `config_groups.group_0`, ...
  std::string joined;    ///< module that the engine builds of this one and others; empty: none
  /// True if these are layers for multi-token prediction, which the engine misreads: users choose
  /// whether it makes a draft model of them.
  bool is_misread_draft = false;
  [[nodiscard]] bool agrees() const { return stored == believed; }
};

struct EngineView {
  EngineVerdict verdict;
  std::vector<BelievedModules> modules;  ///< modules in the order of the checkpoint
};

/// The belief of the engine about every linear layer, from config.json and the dialect's files.
/// kUnsupported for slices of ranks, and for dialects of which it is not known how it reads them.
EngineView engine_view(const formats::Checkpoint& checkpoint, const EngineRow& engine,
                       const Serving& serving = {});

/// The names of weights that the engine takes for another scheme than the stored one. Empty where
/// it is not known how it reads the config.
std::set<std::string, std::less<>> misread_weights(const formats::Checkpoint& checkpoint,
                                                   const EngineRow& engine);

/// Makes a verdict say that the engine does not load the checkpoint, where the engine takes a
/// linear layer for another scheme than the stored one; leaves a verdict that says so already.
/// Layers for multi-token prediction make a note.
void deny_by_beliefs(std::span<const BelievedModules> modules, EngineVerdict& verdict);

/// A verdict of the newest version of each engine, in the order of Engine: engine_verdict(), where
/// an engine that reads every weight also has to believe of every linear layer what is stored, but
/// for those for multi-token prediction. `input` is the checkpoint's.
std::vector<EngineVerdict> believed_verdicts(const formats::Checkpoint& checkpoint,
                                             const EngineInput& input, const Serving& serving = {});

}  // namespace ingot::engines
