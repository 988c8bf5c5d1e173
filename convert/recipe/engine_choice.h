#pragma once

#include "convert/recipe/recipe.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/records/layout.h"

namespace ingot::convert {

/// What --for means: fills in the dialect and the activations that Choices::engine loads for the
/// schemes that `recipe` asks for, where nobody chose them. Does nothing without an engine. Throws
/// kUnsupported for schemes that it does not load, with those that it does, and kInvalidArgument
/// for a dialect, activations or a layout that somebody chose and that it does not load. What rules
/// and the source leave beside these schemes is judged with the planned output.
void choose_for_engine(Recipe& recipe, const formats::Checkpoint& source,
                       const formats::Layout& layout);

/// The row of the engine that a word of --for names; throws kInvalidArgument, naming all.
const engines::EngineRow* parse_engine(std::string_view word);

}  // namespace ingot::convert
