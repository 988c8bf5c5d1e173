#pragma once

#include <optional>
#include <string>

#include "engines/row/engine.h"
#include "formats/checkpoint/checkpoint.h"

// How engines treat scales of a cache of keys and values that a checkpoint stores.

namespace ingot::engines {

/// One sentence about the scales that are stored: used, under which option, or dropped. Nullopt for
/// a checkpoint without any, and for engines of which it is not known.
std::optional<std::string> cache_note(const formats::Checkpoint& checkpoint,
                                      const EngineRow& engine);

}  // namespace ingot::engines
