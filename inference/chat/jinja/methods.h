#pragma once

#include <span>
#include <string_view>

#include "inference/chat/jinja/arguments.h"
#include "inference/chat/jinja/render_state.h"
#include "inference/chat/jinja/value.h"

namespace ingot::inference::jinja {

/// A method of strings, lists, tuples or mappings, as Python has it. `bound` is used unless `open`
/// is set, which takes the arguments as they come.
struct MethodRow {
  std::string_view name;
  Signature signature;
  Value (*bound)(RenderState& state, const Value& self, const Bound& arguments) = nullptr;
  Value (*open)(RenderState& state, const Value& self, Arguments&& arguments) = nullptr;
};

/// The method of a value, null when Python has none of that name. kUnsupported for one that Python
/// has and this does not: the template would go on with a wrong value.
const MethodRow* find_method(RenderState& state, const Value& self, std::string_view name);

Value call_method(RenderState& state, const MethodRow& row, const Value& self,
                  Arguments&& arguments);

/// Per type: what is here, and the names that Python has beside them.
struct TypeMethods {
  std::span<const MethodRow> rows;
  std::span<const std::string_view> absent;
};
TypeMethods string_methods();
TypeMethods list_methods();
TypeMethods tuple_methods();
TypeMethods mapping_methods();

}  // namespace ingot::inference::jinja
