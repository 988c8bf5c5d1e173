#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "inference/chat/jinja/render_state.h"
#include "inference/chat/jinja/value.h"

namespace ingot::inference::jinja {

/// What a call, filter or test was given.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  [[nodiscard]] bool empty() const { return positional.empty() && named.empty(); }
};

/// The parameters of a built-in, in their order; unused places are empty.
struct Signature {
  std::array<std::string_view, 4> names{};
  std::size_t n_required = 0;
};

/// One entry per parameter; nothing where none was given.
using Bound = std::array<std::optional<Value>, 4>;

/// Gives every argument its parameter. A fault naming `callee` for too many or too few arguments,
/// and for a name that is given twice or unknown.
Bound bind(RenderState& state, std::string_view callee, const Signature& signature,
           Arguments&& arguments);

/// The argument as what it must be; a fault naming `what` otherwise. A boolean is an integer.
std::int64_t as_integer(RenderState& state, const Value& value, std::string_view what);
const std::string& as_string(RenderState& state, const Value& value, std::string_view what);

/// False when absent.
inline bool flag(const std::optional<Value>& value) {
  return value && truth(*value);
}

}  // namespace ingot::inference::jinja
