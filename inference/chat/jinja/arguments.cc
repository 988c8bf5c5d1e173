#include "inference/chat/jinja/arguments.h"

#include <algorithm>

#include <fmt/format.h>

namespace ingot::inference::jinja {

Bound bind(RenderState& state, std::string_view callee, const Signature& signature,
           Arguments&& arguments) {
  const auto& names = signature.names;
  const auto n_parameters = static_cast<std::size_t>(
      std::count_if(names.begin(), names.end(), [](auto name) { return !name.empty(); }));
  if (arguments.positional.size() > n_parameters) {
    state.fault(fmt::format("'{}' takes at most {} arguments, not {}", callee, n_parameters,
                            arguments.positional.size()));
  }
  Bound bound;
  for (std::size_t i = 0; i < arguments.positional.size(); ++i) {
    bound.at(i) = std::move(arguments.positional[i]);
  }
  for (auto& [name, value] : arguments.named) {
    const auto* const found = std::find(names.begin(), names.end(), name);
    if (found == names.end() || name.empty()) {
      state.fault(fmt::format("'{}' has no argument '{}'", callee, name));
    }
    auto& place = bound.at(static_cast<std::size_t>(found - names.begin()));
    if (place) state.fault(fmt::format("argument '{}' of '{}' is given twice", name, callee));
    place = std::move(value);
  }
  for (std::size_t i = 0; i < signature.n_required; ++i) {
    if (!bound.at(i)) state.fault(fmt::format("'{}' lacks its argument '{}'", callee, names.at(i)));
  }
  return bound;
}

std::int64_t as_integer(RenderState& state, const Value& value, std::string_view what) {
  if (value.is(Kind::kBoolean)) return static_cast<std::int64_t>(value.boolean());
  if (!value.is(Kind::kInteger)) {
    state.fault(fmt::format("{} must be an integer, not {}", what, type_name(value)));
  }
  return value.integer();
}

const std::string& as_string(RenderState& state, const Value& value, std::string_view what) {
  if (!value.is(Kind::kText)) {
    state.fault(fmt::format("{} must be a string, not {}", what, type_name(value)));
  }
  return value.text();
}

}  // namespace ingot::inference::jinja
