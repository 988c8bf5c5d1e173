#include "inference/chat/jinja/builtins.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "inference/chat/jinja/operators.h"
#include "inference/chat/python_text.h"
#include "inference/tokenizer/characters.h"

namespace ingot::inference::jinja {

namespace {

struct Methods {
  std::span<const Builtin> table;
  std::string_view absent;  // Python's other methods, with a space on either side
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
  state.reserve(places, names.size());
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

void update_mapping(Invocation& call, std::string_view callee, Mapping& mapping) {
  if (call.arguments.positional.size() > 1) {
    call.state.fault("'{}' takes at most 1 argument without a name", callee);
  }
  for (const Value& other : call.arguments.positional) {
    if (!other.is(Kind::kMapping)) {
      call.state.unsupported("'{}' of a {}", callee, type_name(other));
    }
    call.state.charge(other.mapping().entries.size() * 2 * sizeof(Value));
    const auto more = other.mapping().entries;  // a copy, because `other` may be this mapping
    for (const auto& [key, value] : more) {
      set_entry(call.state, mapping, key, value);
    }
  }
  for (const auto& [name, value] : call.arguments.named) {
    set_entry(call.state, mapping, call.state.text(name), value);
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

namespace {

constexpr std::size_t kMaxNameBytes = 100;

[[noreturn]] void refuse_undefined(const RenderState& state, const Value& object,
                                   std::string_view asked) {
  const Text& name = object.undefined_name().name;
  state.fault("'{}' is undefined and has no '{}'",
              std::string_view(name ? *name : "a value").substr(0, kMaxNameBytes),
              asked.substr(0, kMaxNameBytes));
}

std::optional<Value> loop_field(const RenderState& state, Loop& loop, std::string_view name) {
  const auto length = [&] {
    loop.look(std::numeric_limits<std::size_t>::max());
    return loop.passed.size();
  };
  const std::size_t n = loop.n_begun;
  if (name == "index") return Value::count(n);
  if (name == "index0") return Value::count(n - 1);
  if (name == "first") return Value::boolean(n == 1);
  if (name == "last") return Value::boolean(!loop.look(n + 1));
  if (name == "length") return Value::count(length());
  if (name == "revindex") return Value::count(length() - n + 1);
  if (name == "revindex0") return Value::count(length() - n);
  if (name == "previtem" && n > 1) return loop.passed[n - 2];
  if (name == "nextitem" && loop.look(n + 1)) return loop.passed[n];
  if (name == "cycle" || name == "changed" || name == "depth" || name == "depth0") {
    state.unsupported("'loop.{}'", name);
  }
  return std::nullopt;
}

std::string_view character_at(std::string_view text, std::size_t i) {
  for (; i > 0; --i) text.remove_prefix(code_point_at(text, 0).n_bytes);
  return text.substr(0, code_point_at(text, 0).n_bytes);
}

// Returns the character or element at a place; nullopt beyond the ends.
std::optional<Value> element(RenderState& state, const Value& object, std::int64_t at) {
  const bool is_text = object.is(Kind::kText);
  if (!is_text && !has_places(object)) return std::nullopt;
  if (is_text) state.step(object.text().size() / 8);
  const std::size_t size =
      is_text ? code_point_count(object.text()) : object.sequence().items.size();
  const auto n = static_cast<std::int64_t>(size);
  if (at < 0) at += n;
  if (at < 0 || at >= n) return std::nullopt;
  const auto i = static_cast<std::size_t>(at);
  return is_text ? state.text(character_at(object.text(), i)) : object.sequence().items[i];
}

// The indices that Python's slice.indices() gives.
std::vector<std::size_t> slice_indices(RenderState& state, const SliceBounds& bounds,
                                       std::size_t size) {
  const auto n = static_cast<std::int64_t>(size);
  const std::int64_t step = bounds.step.value_or(1);
  if (step == 0) state.fault("the step of a slice is zero");
  const std::int64_t lowest = step > 0 ? 0 : -1;
  const std::int64_t highest = step > 0 ? n : n - 1;
  const auto clamp = [&](std::int64_t at) {
    return std::clamp(at < 0 ? at + n : at, lowest, highest);
  };
  std::int64_t at = bounds.start ? clamp(*bounds.start) : step > 0 ? lowest : highest;
  const std::int64_t stop = bounds.stop ? clamp(*bounds.stop) : step > 0 ? highest : lowest;
  std::vector<std::size_t> indices;
  while (step > 0 ? at < stop : at > stop) {
    state.push(indices, static_cast<std::size_t>(at));
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  return indices;
}

}  // namespace

Value get_attribute(RenderState& state, const Value& object, std::string_view name) {
  state.step();
  if (object.is(Kind::kUndefined)) refuse_undefined(state, object, name);
  if (object.is(Kind::kLoop)) {
    if (const auto field = loop_field(state, object.loop(), name)) return *field;
  }
  if (const Builtin* method = find_method(state, object, name)) {
    return state.callable(*method, object);
  }
  const Value* found = nullptr;
  if (object.is(Kind::kMapping)) found = find_entry(state, object.mapping(), name);
  if (object.is(Kind::kNamespace)) {
    found = find_entry(state, object.name_space().attributes, name);
  }
  if (found != nullptr) return *found;
  if (name.starts_with("__") || object.is(Kind::kCallable)) {
    state.unsupported("the attribute '{}' of a {}", name, type_name(object));
  }
  return state.undefined(name.substr(0, kMaxNameBytes));
}

Value get_item(RenderState& state, const Value& object, const Value& index) {
  state.step();
  const bool is_text = index.is(Kind::kText);
  if (object.is(Kind::kUndefined)) {
    refuse_undefined(state, object, is_text ? index.text() : type_name(index));
  }
  if (object.is(Kind::kMapping)) {
    const Value* found = find_entry(state, object.mapping(), index);
    if (found != nullptr) return *found;
  } else if (is_whole(index)) {
    if (const auto found = element(state, object, whole(index))) return *found;
  }
  if (is_text) return get_attribute(state, object, index.text());
  return state.undefined(index.is(Kind::kInteger) ? fmt::format("[{}]", index.integer())
                                                  : std::string(type_name(index)));
}

Value get_slice(RenderState& state, const Value& object, const SliceBounds& bounds) {
  if (object.is(Kind::kUndefined)) refuse_undefined(state, object, "[:]");
  if (object.is(Kind::kText)) {
    state.step(object.text().size() / 8);
    state.charge(object.text().size() * sizeof(std::string_view));
    const std::vector<std::string_view> all = characters(object.text());
    std::string text;
    for (const std::size_t i : slice_indices(state, bounds, all.size())) state.append(text, all[i]);
    return state.text(std::move(text));
  }
  if (!has_places(object)) state.fault("a {} has no slices", type_name(object));
  const Sequence& sequence = object.sequence();
  std::vector<Value> items;
  for (const std::size_t i : slice_indices(state, bounds, sequence.items.size())) {
    state.step();
    state.push(items, sequence.items[i]);
  }
  return state.sequence(sequence.form, std::move(items));
}

}  // namespace ingot::inference::jinja
