#include "inference/chat/jinja/members.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "inference/chat/jinja/callable.h"
#include "inference/chat/jinja/code_points.h"
#include "inference/chat/jinja/loop_state.h"
#include "inference/chat/jinja/methods.h"
#include "inference/chat/jinja/operators.h"

namespace ingot::inference::jinja {
namespace {

class BoundMethod final : public Callable {
 public:
  BoundMethod(const MethodRow& row, Value self) : row_(row), self_(std::move(self)) {}
  Value call(RenderState& state, Arguments&& arguments) override {
    return call_method(state, row_, self_, std::move(arguments));
  }

 private:
  const MethodRow& row_;
  Value self_;
};

constexpr std::size_t kMaxNameBytes = 100;

[[noreturn]] void refuse_undefined(const RenderState& state, const Value& object,
                                   std::string_view asked) {
  const Text& name = object.undefined_name().name;
  state.fault(fmt::format("'{}' is undefined and has no '{}'",
                          name ? std::string_view(*name).substr(0, kMaxNameBytes) : "a value",
                          asked.substr(0, kMaxNameBytes)));
}

// A method or field; nothing where Python would go on to look for a key.
std::optional<Value> find_attribute(RenderState& state, const Value& object,
                                    std::string_view name) {
  switch (object.kind()) {
    case Kind::kUndefined:
      refuse_undefined(state, object, name);
    case Kind::kNamespace:
      for (const auto& [key, value] : object.name_space().entries) {
        state.step();
        if (key == name) return value;
      }
      return std::nullopt;
    case Kind::kLoop:
      return object.loop().attribute(state, name);
    case Kind::kCallable:
      return object.callable().attribute(state, name);
    default:
      break;
  }
  const MethodRow* method = find_method(state, object, name);
  if (method == nullptr) return std::nullopt;
  return Value::callable(state.make<BoundMethod>(*method, object));
}

std::optional<Value> find_item(RenderState& state, const Value& object, const Value& index) {
  if (object.is(Kind::kMapping)) {
    const Value* found = find_entry(state, object.mapping(), index);
    return found == nullptr ? std::nullopt : std::optional<Value>(*found);
  }
  if (!index.is(Kind::kInteger) && !index.is(Kind::kBoolean)) return std::nullopt;
  std::int64_t at =
      index.is(Kind::kBoolean) ? static_cast<std::int64_t>(index.boolean()) : index.integer();
  if (object.is(Kind::kText)) {
    state.scan(object.text().size());
    const std::string& text = object.text();
    const auto n = static_cast<std::int64_t>(code_point_count(text));
    if (at < 0) at += n;
    if (at < 0 || at >= n) return std::nullopt;
    std::size_t begin = 0;
    for (std::int64_t i = 0; i < at; ++i) next_code_point(text, begin);
    std::size_t end = begin;
    next_code_point(text, end);
    state.step(begin / 8);
    return state.text(std::string_view(text).substr(begin, end - begin));
  }
  if (!object.is(Kind::kSequence)) return std::nullopt;
  const Sequence& sequence = object.sequence();
  if (sequence.form == Sequence::Form::kView || sequence.form == Sequence::Form::kIterator) {
    return std::nullopt;
  }
  const auto n = static_cast<std::int64_t>(sequence.items.size());
  if (at < 0) at += n;
  if (at < 0 || at >= n) return std::nullopt;
  return sequence.items[static_cast<std::size_t>(at)];
}

bool is_internal(std::string_view name) {
  return name.starts_with("__");
}

// The indices that Python's slice.indices() gives.
std::vector<std::size_t> slice_indices(RenderState& state, const SliceBounds& bounds,
                                       std::int64_t n) {
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
  if (std::optional<Value> found = find_attribute(state, object, name)) return *found;
  if (object.is(Kind::kMapping)) {
    if (const Value* entry = find_entry(state, object.mapping(), name)) return *entry;
  }
  if (is_internal(name)) state.unsupported(fmt::format("the attribute '{}'", name));
  return Value::undefined(name);
}

Value get_item(RenderState& state, const Value& object, const Value& index) {
  state.step();
  if (object.is(Kind::kUndefined)) {
    refuse_undefined(state, object, index.is(Kind::kText) ? index.text() : type_name(index));
  }
  if (std::optional<Value> found = find_item(state, object, index)) return *found;
  if (!index.is(Kind::kText)) {
    return Value::undefined(index.is(Kind::kInteger) ? fmt::format("[{}]", index.integer())
                                                     : std::string(type_name(index)));
  }
  if (std::optional<Value> found = find_attribute(state, object, index.text())) return *found;
  if (is_internal(index.text())) state.unsupported(fmt::format("the item '{}'", index.text()));
  return Value::undefined(std::string_view(index.text()).substr(0, kMaxNameBytes));
}

Value get_slice(RenderState& state, const Value& object, const SliceBounds& bounds) {
  if (object.is(Kind::kUndefined)) refuse_undefined(state, object, "[:]");
  if (object.is(Kind::kText)) {
    const std::string_view text = object.text();
    state.step(text.size() / 8);
    const std::vector<std::size_t> offsets = code_point_offsets(text);
    std::string out;
    for (const std::size_t i :
         slice_indices(state, bounds, static_cast<std::int64_t>(offsets.size() - 1))) {
      out += text.substr(offsets[i], offsets[i + 1] - offsets[i]);
    }
    return state.text(std::move(out));
  }
  const bool can = object.is(Kind::kSequence) && object.sequence().form != Sequence::Form::kView &&
                   object.sequence().form != Sequence::Form::kIterator;
  if (!can) state.fault(fmt::format("a {} has no slices", type_name(object)));
  const Sequence& sequence = object.sequence();
  const auto indices =
      slice_indices(state, bounds, static_cast<std::int64_t>(sequence.items.size()));
  state.step(indices.size());
  std::vector<Value> items;
  items.reserve(indices.size());
  for (const std::size_t i : indices) items.push_back(sequence.items[i]);
  return Value::sequence(state.sequence(sequence.form, std::move(items)));
}

}  // namespace ingot::inference::jinja
