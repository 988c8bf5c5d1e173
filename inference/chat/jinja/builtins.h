#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "inference/chat/jinja/render_state.h"
#include "inference/chat/jinja/value.h"

namespace ingot::inference::jinja {

/// The arguments of a call.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

/// The parameters of a function.
struct Signature {
  std::span<const std::string_view> names;
  std::size_t n_required = 0;
};

/// Moves every argument to the place of its parameter: one positional value per name, Value() where
/// none was given. A fault naming `callee` for too many or too few arguments, and for a name that
/// is given twice or unknown.
void bind(RenderState& state, std::string_view callee, const Signature& signature,
          Arguments& arguments);

/// A call of a built-in.
struct Invocation {
  RenderState& state;
  /// The value that a filter or test is applied to, or that a method belongs to.
  const Value& self;
  Arguments arguments;

  [[nodiscard]] const Value& operator[](std::size_t i) const { return arguments.positional[i]; }
  /// True if parameter `i` was given and is not none.
  [[nodiscard]] bool has(std::size_t i) const {
    return !(*this)[i].is(Kind::kUndefined) && !(*this)[i].is(Kind::kNone);
  }
};

/// Sets the arguments of dict(), namespace() and update(): the entries of one mapping, any names.
void update_mapping(Invocation& call, std::string_view callee, Mapping& mapping);

/// One row of the filters, tests and functions of templates: those of Jinja 3.1, tojson as
/// transformers has it, methods as Python has them.
struct Builtin {
  std::string_view name;
  std::array<std::string_view, 4> parameters{};
  std::size_t n_required = 0;
  Value (*run)(Invocation& call) = nullptr;
  bool is_open = false;  ///< arguments go to run() as they come, not bound to `parameters`
};

std::span<const Builtin> text_filters();
std::span<const Builtin> sequence_filters();
std::span<const Builtin> tests();
std::span<const Builtin> functions();
std::span<const Builtin> text_methods();
std::span<const Builtin> list_methods();
std::span<const Builtin> mapping_methods();

/// Returns the row of that name; null when there is none.
const Builtin* find_builtin(std::span<const Builtin> table, std::string_view name);
const Builtin* find_filter(std::string_view name);

/// Returns the method of a value; null when Python has none of that name. Throws kUnsupported for a
/// method that only Python has: the template would go on with a wrong value.
const Builtin* find_method(const RenderState& state, const Value& self, std::string_view name);

Value call_builtin(RenderState& state, const Builtin& builtin, const Value& self,
                   Arguments arguments);

}  // namespace ingot::inference::jinja
