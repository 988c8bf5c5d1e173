#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engines/verdicts.h"

// One engine's view of a checkpoint, from headers and JSON only.

namespace ingot::engines {

/// Linear layers of one kind of which an engine believes the same.
struct BelievedModules {
  std::string name;  ///< name with the numbers that occur: `model.layers.{1-4,6}.mlp.gate`
  std::uint64_t count = 0;
  std::string stored;    ///< scheme, or `plain`
  std::string believed;  ///< scheme that the engine reads
  std::string because;   ///< `ignore`, `config_groups.group_0`, ...
  std::string joined;    ///< module that the engine builds of this one and others; empty: none
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

/// Makes a verdict say that the engine does not load the checkpoint, where the engine takes a
/// linear layer for another scheme than the stored one; leaves a verdict that says so already.
void deny_by_beliefs(std::span<const BelievedModules> modules, EngineVerdict& verdict);

/// A verdict of the newest version of each engine, in the order of Engine: engine_verdict(), where
/// an engine that reads every weight also has to believe of every linear layer what is stored, but
/// for those for multi-token prediction. `input` is the checkpoint's.
std::vector<EngineVerdict> believed_verdicts(const formats::Checkpoint& checkpoint,
                                             const EngineInput& input, const Serving& serving = {});

}  // namespace ingot::engines
