#include "inference/chat/jinja/builtins.h"

#include <algorithm>

#include <fmt/format.h>

#include "inference/chat/jinja/operators.h"

namespace ingot::inference::jinja {
namespace {

struct Methods {
  std::span<const Builtin> table;
  std::string_view absent;  // what Python has besides, with a space on either side
};

Methods methods_of(const Value& value) {
  if (value.is(Kind::kText)) {
    return {text_methods(),
            " casefold center count encode expandtabs find format format_map index isalnum isalpha "
            "isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle "
            "isupper ljust maketrans partition removeprefix removesuffix rfind rindex rjust "
            "rpartition rsplit splitlines swapcase translate zfill "};
  }
  if (value.is(Kind::kMapping)) {
    return {mapping_methods(), " clear copy fromkeys pop popitem setdefault "};
  }
  if (is_form(value, Sequence::Form::kList)) {
    return {list_methods(), " clear copy count insert remove reverse sort "};
  }
  return {{}, has_places(value) ? " count index start stop step " : ""};
}

}  // namespace

void bind(RenderState& state, std::string_view callee, const Signature& signature,
          Arguments& arguments) {
  const auto names = signature.names;
  auto& places = arguments.positional;
  if (places.size() > names.size()) {
    state.fault("'{}' takes at most {} arguments, not {}", callee, names.size(), places.size());
  }
  places.resize(names.size());
  for (auto& [name, value] : arguments.named) {
    state.step(names.size());
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
      state.fault("'{}' has no argument '{}'", callee, name);
    }
    Value& place = places[static_cast<std::size_t>(found - names.begin())];
    if (!place.is_absent()) {
      state.fault("argument '{}' of '{}' is given twice", name, callee);
    }
    place = std::move(value);
  }
  arguments.named.clear();
  for (std::size_t i = 0; i < signature.n_required; ++i) {
    if (places[i].is_absent()) {
      state.fault("'{}' lacks its argument '{}'", callee, names[i]);
    }
  }
}

const Builtin* find_builtin(std::span<const Builtin> table, std::string_view name) {
  const auto found = std::find_if(table.begin(), table.end(),
                                  [&](const Builtin& row) { return row.name == name; });
  return found == table.end() ? nullptr : &*found;
}

const Builtin* find_filter(std::string_view name) {
  const Builtin* found = find_builtin(text_filters(), name);
  return found != nullptr ? found : find_builtin(sequence_filters(), name);
}

const Builtin* find_method(const RenderState& state, const Value& self, std::string_view name) {
  const Methods methods = methods_of(self);
  const Builtin* found = find_builtin(methods.table, name);
  if (found == nullptr && methods.absent.find(fmt::format(" {} ", name)) != std::string::npos) {
    state.unsupported("the method '{}' of a {}", name, type_name(self));
  }
  return found;
}

Value call_builtin(RenderState& state, const Builtin& builtin, const Value& self,
                   Arguments arguments) {
  state.step();
  if (!builtin.is_open) {
    const auto& names = builtin.parameters;
    const auto end = std::find(names.begin(), names.end(), "");
    bind(state, builtin.name, {{names.begin(), end}, builtin.n_required}, arguments);
  }
  Invocation call{.state = state, .self = self, .arguments = std::move(arguments)};
  return builtin.run(call);
}

}  // namespace ingot::inference::jinja
