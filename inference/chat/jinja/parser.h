#pragma once

#include <string_view>

#include "inference/chat/jinja/syntax.h"

namespace ingot::inference::jinja {

/// Parses a template: valid UTF-8. Throws kCorrupt for a syntax error, kUnsupported for a construct
/// outside the subset, by its name, and kLimit for too deep nesting, each with the line.
Block parse_template(std::string_view source);

}  // namespace ingot::inference::jinja
