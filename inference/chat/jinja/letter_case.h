#pragma once

#include <string>
#include <string_view>

#include "inference/chat/jinja/render_state.h"

namespace ingot::inference::jinja {

// Changes of case as Python's str does them, for the letters A to Z. Text without case in other
// scripts passes unchanged; a letter outside ASCII that has a case is kUnsupported, since the full
// mapping of Unicode (where one letter may become two) is not here.

std::string to_upper(RenderState& state, std::string_view text);
std::string to_lower(RenderState& state, std::string_view text);
/// First letter upper, the rest lower.
std::string to_capitalized(RenderState& state, std::string_view text);
/// str.title(): upper after anything that is not a letter.
std::string to_title(RenderState& state, std::string_view text);

/// str.isprintable() of one character outside ASCII: repr() escapes the others.
bool is_printable(std::string_view character);

}  // namespace ingot::inference::jinja
