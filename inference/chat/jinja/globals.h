#pragma once

#include <string_view>

#include "inference/chat/jinja/render_state.h"
#include "inference/chat/jinja/value.h"

namespace ingot::inference::jinja {

/// The function that every template finds under this name unless a variable hides it: namespace,
/// range, dict, raise_exception, strftime_now, cycler, joiner. Undefined for any other name;
/// kUnsupported for what Jinja has besides.
Value find_global(RenderState& state, std::string_view name);

}  // namespace ingot::inference::jinja
