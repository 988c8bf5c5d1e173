#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json/json_fwd.h"
#include "inference/chat/jinja/render_state.h"
#include "inference/chat/jinja/value.h"
#include "inference/chat/python_text.h"

// Python's operators on values. A combination of types that Python refuses is a fault.

namespace ingot::inference::jinja {

/// bool(value)
bool truth(const Value& value);

/// The name of its type for messages: "string", "list", "mapping", ...
std::string_view type_name(const Value& value);

/// Returns the value as an integer; throws a fault naming `what` for another kind.
std::int64_t as_integer(const RenderState& state, const Value& value, std::string_view what);
const std::string& as_text(const RenderState& state, const Value& value, std::string_view what);

enum class Operator : std::uint8_t {
  kOr,
  kAnd,
  kConcatenate,
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};

/// Any operator between two values; the caller decides whether `and` and `or` evaluate their right
/// side. Throws kLimit for an integer beyond 64 bits.
Value binary_operation(RenderState& state, Operator op, const Value& left, const Value& right);
Value negate(const RenderState& state, const Value& operand);

/// Python's ==: numbers by value whatever their type, containers by their elements.
bool equal(RenderState& state, const Value& left, const Value& right);
/// Python's <: numbers, strings, lists and tuples, each among their kind.
bool less(RenderState& state, const Value& left, const Value& right);
/// `needle in haystack`
bool contains(RenderState& state, const Value& haystack, const Value& needle);

/// Returns the entry of a mapping; null when it is not there. Throws a fault when `key` is of a
/// type that Python does not hash.
const Value* find_entry(RenderState& state, const Mapping& mapping, const Value& key);
const Value* find_entry(RenderState& state, const Mapping& mapping, std::string_view key);
void set_entry(RenderState& state, Mapping& mapping, const Value& key, const Value& value);

/// The elements that a loop would see: keys of a mapping, characters of a string, none of
/// undefined. An iterator is empty afterwards. Throws a fault for a value that cannot be iterated.
std::vector<Value> elements(RenderState& state, const Value& value);

/// `object.name`: a method of Python first, then the key of a mapping; undefined where neither is.
/// Throws a fault for undefined, which has no attributes.
Value get_attribute(RenderState& state, const Value& object, std::string_view name);

/// `object[index]`: the element or key first, then for a string the attribute of that name;
/// undefined where there is none. Negative indices count from the end, in code points for a string.
Value get_item(RenderState& state, const Value& object, const Value& index);

/// The bounds of `object[start:stop:step]`; nullopt where none is written.
struct SliceBounds {
  std::optional<std::int64_t> start, stop, step;
};
/// Takes a string (in code points), list, tuple or range; a fault for anything else.
Value get_slice(RenderState& state, const Value& object, const SliceBounds& bounds);

/// The output of `{{ value }}`: Python's str(); empty for undefined. Throws kUnsupported for
/// iterators, views, ranges and functions, whose text is that of Python's internals.
std::string to_text(RenderState& state, const Value& value);

/// JSON as a value of a template. Throws kLimit for an integer beyond 64 bits with sign.
Value value_from_json(RenderState& state, const formats::Json& json);

/// The output of json.dumps: tuples are arrays, keys become strings. Throws a fault for values that
/// it refuses: undefined, views, iterators, namespaces, functions. With style.sort_keys, keys other
/// than strings are kUnsupported: Python sorts them before it makes strings of them.
std::string json_text(RenderState& state, const Value& value, const PythonJsonStyle& style);

}  // namespace ingot::inference::jinja
