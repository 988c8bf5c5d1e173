#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "engines/row/engine.h"

// The versions of engines that are modelled: a file and a line each. A version that has no row is
// not known, and never taken for another.

namespace ingot::engines {

extern const EngineRow kVllmRow, kVllm032Row, kSglangRow, kTrtllmRow, kVllmAscendRow,
    kTransformersRow, kDeepseekRow;

/// Every row; of one engine the newest first.
std::span<const EngineRow* const> engine_versions();
/// The newest versions of engines whose refusals are known (EngineRow::is_judged).
std::vector<const EngineRow*> judged_versions();
/// The newest version of each engine, in the order of Engine.
std::span<const EngineRow* const> engines();
const EngineRow& newest(Engine engine);
/// The newest version of the engine with this word, or null.
const EngineRow* find_engine(std::string_view word);
/// The row of `word` or `word:version`, as in `vllm:0.32`. kInvalidArgument for another word,
/// kUnsupported for a version that is not modelled.
const EngineRow& engine_of(std::string_view text);

/// A fact about an engine that two of its versions do not share.
struct EngineChange {
  std::string id;       ///< row_id(), "family.NAME", reading_id(), "pin.PACKAGE" ...
  std::string was, is;  ///< the fact in either version; empty: it has none
};
/// Returns the facts that the newest version of the engine does not share with this one, by id.
std::vector<EngineChange> changes_since(const EngineRow& version);

}  // namespace ingot::engines
