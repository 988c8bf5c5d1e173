#pragma once

#include <string>

#include "formats/json/json_fwd.h"
#include "inference/chat/jinja/render_state.h"
#include "inference/chat/jinja/value.h"
#include "inference/chat/python_text.h"

namespace ingot::inference::jinja {

/// What `{{ value }}` prints: Python's str(); nothing for undefined. kUnsupported for iterators,
/// views, ranges and functions, whose text is that of Python's internals.
std::string to_text(RenderState& state, const Value& value);

/// JSON as a value of a template. kLimit for an integer beyond 64 bits with sign.
Value value_from_json(RenderState& state, const formats::Json& json);

/// What json.dumps writes: tuples are arrays, keys become strings. A fault for what it refuses:
/// undefined, views, iterators, namespaces, functions. With style.sort_keys, keys other than
/// strings are kUnsupported: Python sorts them before it makes strings of them.
std::string json_text(RenderState& state, const Value& value, const PythonJsonStyle& style);

}  // namespace ingot::inference::jinja
