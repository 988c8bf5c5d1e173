#pragma once

#include <string>

#include "inference/chat/jinja/render_state.h"
#include "inference/chat/jinja/value.h"

namespace ingot::inference::jinja {

/// What `{{ value }}` prints: Python's str(); nothing for undefined. kUnsupported for iterators,
/// views, ranges and functions, whose text is that of Python's internals.
std::string to_text(RenderState& state, const Value& value);

}  // namespace ingot::inference::jinja
