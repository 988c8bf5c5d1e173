#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include "inference/chat/jinja/methods.h"
#include "inference/chat/jinja/operators.h"

namespace ingot::inference::jinja {
namespace {

Value append(RenderState& state, const Value& self, const Bound& arguments) {
  state.charge(sizeof(Value));
  self.sequence().items.push_back(*arguments[0]);
  return Value::none();
}

Value extend(RenderState& state, const Value& self, const Bound& arguments) {
  std::vector<Value> more = elements(state, *arguments[0]);
  state.charge(more.size() * sizeof(Value));
  auto& items = self.sequence().items;
  items.insert(items.end(), more.begin(), more.end());
  return Value::none();
}

Value pop(RenderState& state, const Value& self, const Bound& arguments) {
  auto& items = self.sequence().items;
  const auto n = static_cast<std::int64_t>(items.size());
  std::int64_t at = arguments[0] ? as_integer(state, *arguments[0], "the index of 'pop'") : -1;
  if (at < 0) at += n;
  if (at < 0 || at >= n) state.fault(fmt::format("'pop' from place {} of {}", at, n));
  state.step(items.size() / 8);
  const Value taken = items[static_cast<std::size_t>(at)];
  items.erase(items.begin() + at);
  return taken;
}

Value index(RenderState& state, const Value& self, const Bound& arguments) {
  const auto& items = self.sequence().items;
  const auto found = std::find_if(items.begin(), items.end(), [&](const Value& item) {
    return equal(state, item, *arguments[0]);
  });
  if (found == items.end()) state.fault("'index' of what is not in the list");
  return Value::integer(found - items.begin());
}

enum class Side : std::uint8_t { kKeys, kValues, kItems };

template <Side kSide>
Value view(RenderState& state, const Value& self, const Bound& /*arguments*/) {
  std::vector<Value> items;
  state.charge(self.mapping().entries.size() * sizeof(Value));
  for (const auto& [key, value] : self.mapping().entries) {
    items.push_back(kSide == Side::kKeys     ? key
                    : kSide == Side::kValues ? value
                                             : state.tuple({key, value}));
  }
  return Value::sequence(state.sequence(Sequence::Form::kView, std::move(items)));
}

Value get(RenderState& state, const Value& self, const Bound& arguments) {
  const Value& key = *arguments[0];
  if (!can_be_key(key)) state.fault(fmt::format("a {} cannot be a key", type_name(key)));
  const Value* found = find_entry(state, self.mapping(), key);
  if (found != nullptr) return *found;
  return arguments[1].value_or(Value::none());
}

Value update(RenderState& state, const Value& self, Arguments&& arguments) {
  if (arguments.positional.size() > 1) state.fault("'update' takes at most 1 argument");
  if (!arguments.positional.empty()) {
    const Value& other = arguments.positional[0];
    if (!other.is(Kind::kMapping)) {
      state.unsupported(fmt::format("'update' with a {}", type_name(other)));
    }
    const auto entries = other.mapping().entries;
    for (const auto& [key, value] : entries) set_entry(state, self.mapping(), key, value);
  }
  for (const auto& [name, value] : arguments.named) {
    set_entry(state, self.mapping(), state.text(std::string_view(name)), value);
  }
  return Value::none();
}

constexpr std::array kListRows = {
    MethodRow{
        .name = "append", .signature = {.names = {"object"}, .n_required = 1}, .bound = append},
    MethodRow{
        .name = "extend", .signature = {.names = {"iterable"}, .n_required = 1}, .bound = extend},
    MethodRow{.name = "pop", .signature = {.names = {"index"}, .n_required = 0}, .bound = pop},
    MethodRow{.name = "index", .signature = {.names = {"value"}, .n_required = 1}, .bound = index},
};
constexpr std::array<std::string_view, 7> kListAbsent = {"clear",  "copy",    "count", "insert",
                                                         "remove", "reverse", "sort"};

constexpr std::array kTupleRows = {kListRows[3]};
constexpr std::array<std::string_view, 1> kTupleAbsent = {"count"};

constexpr std::array kMappingRows = {
    MethodRow{.name = "items", .bound = view<Side::kItems>},
    MethodRow{.name = "keys", .bound = view<Side::kKeys>},
    MethodRow{.name = "values", .bound = view<Side::kValues>},
    MethodRow{
        .name = "get", .signature = {.names = {"key", "default"}, .n_required = 1}, .bound = get},
    MethodRow{.name = "update", .open = update},
};
constexpr std::array<std::string_view, 6> kMappingAbsent = {"clear", "copy",    "fromkeys",
                                                            "pop",   "popitem", "setdefault"};

}  // namespace

TypeMethods list_methods() {
  return {.rows = kListRows, .absent = kListAbsent};
}
TypeMethods tuple_methods() {
  return {.rows = kTupleRows, .absent = kTupleAbsent};
}
TypeMethods mapping_methods() {
  return {.rows = kMappingRows, .absent = kMappingAbsent};
}

}  // namespace ingot::inference::jinja
