#pragma once

#include <cstdint>

#include "formats/json/json.h"
#include "inference/chat/jinja/render_state.h"
#include "inference/chat/jinja/value.h"

namespace ingot::inference::jinja {

/// JSON as values of a template. kLimit for an integer beyond 64 bits with sign.
Value value_from_json(RenderState& state, const formats::Json& json);

/// Which keys a mapping may have: kText makes any other kUnsupported.
enum class JsonKeys : std::uint8_t { kAny, kText };

/// What json.dumps makes of a value: tuples are arrays, keys become strings. A fault for what it
/// refuses: undefined, views, iterators, namespaces, functions.
formats::Json json_from_value(RenderState& state, const Value& value,
                              JsonKeys keys = JsonKeys::kAny);

}  // namespace ingot::inference::jinja
