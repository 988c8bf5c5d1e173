#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "check/rules/engine_verdicts.h"
#include "check/rules/loader_rules.h"

// What one engine makes of a checkpoint, from headers and JSON alone.

namespace ingot::check {

/// Linear layers of one kind of which an engine believes the same.
struct BelievedModules {
  std::string name;  ///< with the numbers that occur: `model.layers.{1-4,6}.mlp.gate`
  std::uint64_t count = 0;
  std::string stored;    ///< scheme, or `plain`
  std::string believed;  ///< the same, by what the engine reads
  std::string because;   ///< `ignore`, `config_groups.group_0`, ...
  std::string joined;    ///< the module that it builds of this and others; empty: none
  [[nodiscard]] bool agrees() const { return stored == believed; }
};

struct EngineView {
  EngineVerdict verdict;
  std::vector<BelievedModules> modules;  ///< in the order of the checkpoint
};

/// What the engine reads out of config.json and the dialect's files for every linear layer.
/// kUnsupported for slices of ranks, and for dialects that are sources alone.
EngineView engine_view(const formats::Checkpoint& checkpoint, formats::Engine engine,
                       const Serving& serving = {});

/// engine_verdicts(), where an engine that reads every weight also has to believe of every linear
/// layer what is stored, but for those for multi-token prediction.
std::vector<EngineVerdict> believed_verdicts(const formats::Checkpoint& checkpoint,
                                             const Serving& serving = {});

/// The findings that are of structure, or of rows that name the engine or all. A row about what
/// this engine refuses makes errors; one about an option of it warns.
std::vector<Finding> findings_for(formats::Engine engine, std::span<const Finding> findings);

/// One voice: an engine about which the findings have an error does not load the checkpoint,
/// whatever its verdict was.
void deny_by_errors(std::span<const Finding> findings, std::vector<EngineVerdict>& verdicts);

}  // namespace ingot::check
