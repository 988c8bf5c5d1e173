#pragma once

#include <string_view>
#include <vector>

#include "inference/chat/jinja/render_state.h"
#include "inference/chat/jinja/syntax.h"
#include "inference/chat/jinja/value.h"

namespace ingot::inference::jinja {

// Operators with Python's meaning. Integers have 64 bits: beyond them is kLimit. A combination of
// types that Python refuses is a fault.

/// In arithmetic.cc. `and` and `or` get both sides here; whether the right one is evaluated at all
/// is the caller's matter.
Value binary_operation(RenderState& state, BinaryOperator op, const Value& left,
                       const Value& right);
Value negate(RenderState& state, const Value& operand);

/// Python's ==: numbers by value whatever their type, containers by their elements.
bool equal(RenderState& state, const Value& left, const Value& right);
/// Python's <: numbers, strings, lists and tuples, each among their kind.
bool less(RenderState& state, const Value& left, const Value& right);
bool related(RenderState& state, Relation relation, const Value& left, const Value& right);
/// `needle in haystack`.
bool contains(RenderState& state, const Value& haystack, const Value& needle);

/// Whether Python hashes values of this type.
bool can_be_key(const Value& value);

/// The entry of a mapping, null when the key is not there or can be no key.
const Value* find_entry(RenderState& state, const Mapping& mapping, const Value& key);
const Value* find_entry(RenderState& state, const Mapping& mapping, std::string_view key);
/// A fault when `key` is of a type that Python does not hash.
void set_entry(RenderState& state, Mapping& mapping, const Value& key, const Value& value);

/// The elements that a loop would see; keys of a mapping, characters of a string, none of
/// undefined. An iterator is empty afterwards. A fault for what cannot be iterated.
std::vector<Value> elements(RenderState& state, const Value& value);

}  // namespace ingot::inference::jinja
