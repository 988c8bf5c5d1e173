#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "inference/chat/jinja/builtins.h"
#include "inference/chat/jinja/operators.h"
#include "inference/chat/python_text.h"

namespace ingot::inference::jinja {
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

// The character or element at a place; nothing beyond the ends.
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
  return is_text ? state.text(characters(object.text())[i]) : object.sequence().items[i];
}

// The indices that Python's slice.indices() gives.
std::vector<std::size_t> slice_indices(const RenderState& state, const SliceBounds& bounds,
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
    indices.push_back(static_cast<std::size_t>(at));
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
  return Value::undefined(name.substr(0, kMaxNameBytes));
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
  return Value::undefined(index.is(Kind::kInteger) ? fmt::format("[{}]", index.integer())
                                                   : std::string(type_name(index)));
}

Value get_slice(RenderState& state, const Value& object, const SliceBounds& bounds) {
  if (object.is(Kind::kUndefined)) refuse_undefined(state, object, "[:]");
  if (object.is(Kind::kText)) {
    state.step(object.text().size() / 8);
    const std::vector<std::string_view> all = characters(object.text());
    std::string text;
    for (const std::size_t i : slice_indices(state, bounds, all.size())) text += all[i];
    return state.text(std::move(text));
  }
  if (!has_places(object)) state.fault("a {} has no slices", type_name(object));
  const Sequence& sequence = object.sequence();
  std::vector<Value> items;
  for (const std::size_t i : slice_indices(state, bounds, sequence.items.size())) {
    state.step();
    items.push_back(sequence.items[i]);
  }
  return state.sequence(sequence.form, std::move(items));
}

}  // namespace ingot::inference::jinja
