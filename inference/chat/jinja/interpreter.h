#pragma once

#include <string>

#include "formats/json/json.h"
#include "inference/chat/jinja/render_state.h"
#include "inference/chat/jinja/syntax.h"

namespace ingot::inference::jinja {

/// Runs the tree of a template with these variables, an object. Returns what it writes.
std::string run_template(RenderState& state, const Block& block, const formats::Json& variables);

}  // namespace ingot::inference::jinja
