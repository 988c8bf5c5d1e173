#pragma once

#include <optional>
#include <string_view>

#include "inference/chat/jinja/render_state.h"
#include "inference/chat/jinja/value.h"

namespace ingot::inference::jinja {

/// `object.name`: a method of Python first, then the key of a mapping; undefined where neither is.
/// A fault for undefined, which has no attributes.
Value get_attribute(RenderState& state, const Value& object, std::string_view name);

/// `object[index]`: the element or key first, then for a string the attribute of that name;
/// undefined where nothing is. Negative indices count from the end, in code points for a string.
Value get_item(RenderState& state, const Value& object, const Value& index);

/// The bounds of `object[start:stop:step]`; nothing where none is written.
struct SliceBounds {
  std::optional<std::int64_t> start, stop, step;
};

/// Of a string (in code points), list, tuple or range; a fault for anything else.
Value get_slice(RenderState& state, const Value& object, const SliceBounds& bounds);

}  // namespace ingot::inference::jinja
