#pragma once

#include "convert/recipe/recipe.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/records/layout.h"

namespace ingot::convert {

/// Applies --for: fills in the dialect and the activations that Choices::engine loads for the
/// schemes that `recipe` asks for, where the user chose none. Does nothing without an engine.
/// Throws kUnsupported for schemes that it does not load, with those that it does, and
/// kInvalidArgument for a dialect, activations or a layout that the user chose and that it does not
/// load. Other schemes, of rules and of the source, are judged with the planned output.
void choose_for_engine(Recipe& recipe, const formats::Checkpoint& source,
                       const formats::Layout& layout);

/// The row of the engine that a word of --for names; throws kInvalidArgument, naming all.
const engines::EngineRow* parse_engine(std::string_view word);

}  // namespace ingot::convert
