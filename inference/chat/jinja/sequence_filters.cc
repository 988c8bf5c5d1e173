#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "inference/chat/jinja/attribute_path.h"
#include "inference/chat/jinja/code_points.h"
#include "inference/chat/jinja/filters.h"
#include "inference/chat/jinja/letter_case.h"
#include "inference/chat/jinja/operators.h"
#include "inference/chat/jinja/text_form.h"

namespace ingot::inference::jinja {
namespace {

bool is_given(const std::optional<Value>& value) {
  return value && !value->is(Kind::kNone);
}

bool is_iterator(const Value& value) {
  return value.is(Kind::kSequence) && value.sequence().form == Sequence::Form::kIterator;
}

std::optional<AttributePath> path_of(RenderState& state, const std::optional<Value>& attribute) {
  if (!is_given(attribute)) return std::nullopt;
  return AttributePath(state, *attribute);
}

Value length(RenderState& state, const Value& input, const Bound& /*arguments*/) {
  const auto size = [](std::size_t n) { return Value::integer(static_cast<std::int64_t>(n)); };
  if (input.is(Kind::kUndefined)) return size(0);
  if (input.is(Kind::kText)) {
    state.scan(input.text().size());
    return size(code_point_count(input.text()));
  }
  if (input.is(Kind::kMapping)) return size(input.mapping().entries.size());
  if (input.is(Kind::kSequence) && !is_iterator(input)) {
    return size(input.sequence().items.size());
  }
  state.fault(fmt::format("a {} has no length", type_name(input)));
}

Value join(RenderState& state, const Value& input, const Bound& arguments) {
  const std::string separator = arguments[0] ? to_text(state, *arguments[0]) : "";
  const std::optional<AttributePath> path = path_of(state, arguments[1]);
  std::string text;
  bool first = true;
  for (const Value& item : elements(state, input)) {
    const std::string part = to_text(state, path ? path->of(state, item) : item);
    state.charge(part.size() + separator.size());
    if (!std::exchange(first, false)) text += separator;
    text += part;
  }
  return state.text(std::move(text));
}

std::vector<std::pair<Value, Value>> entries_of(RenderState& state, const Value& input,
                                                std::string_view filter) {
  if (!input.is(Kind::kMapping)) {
    state.fault(fmt::format("'{}' of a {} (a mapping is needed)", filter, type_name(input)));
  }
  state.charge(input.mapping().entries.size() * 2 * sizeof(Value));
  return input.mapping().entries;
}

std::vector<Value> pairs(RenderState& state, const std::vector<std::pair<Value, Value>>& entries) {
  std::vector<Value> items;
  items.reserve(entries.size());
  for (const auto& [key, value] : entries) items.push_back(state.tuple({key, value}));
  return items;
}

Value items(RenderState& state, const Value& input, const Bound& /*arguments*/) {
  if (input.is(Kind::kUndefined)) return state.iterator({});
  return state.iterator(pairs(state, entries_of(state, input, "items")));
}

Value list(RenderState& state, const Value& input, const Bound& /*arguments*/) {
  return state.list(elements(state, input));
}

Value first(RenderState& state, const Value& input, const Bound& /*arguments*/) {
  const std::vector<Value> all = elements(state, input);
  return all.empty() ? Value::undefined("the first element of nothing") : all.front();
}

Value last(RenderState& state, const Value& input, const Bound& /*arguments*/) {
  if (is_iterator(input)) state.fault("'last' of an iterator (make it a list first)");
  const std::vector<Value> all = elements(state, input);
  return all.empty() ? Value::undefined("the last element of nothing") : all.back();
}

Value reverse(RenderState& state, const Value& input, const Bound& /*arguments*/) {
  std::vector<Value> all = elements(state, input);
  std::reverse(all.begin(), all.end());
  if (is_iterator(input)) return state.list(std::move(all));
  if (!input.is(Kind::kText)) return state.iterator(std::move(all));
  std::string text;
  for (const Value& character : all) text += character.text();
  return state.text(std::move(text));
}

// What elements are compared by: without case unless asked for.
Value comparable(RenderState& state, const Value& value, bool case_sensitive) {
  if (case_sensitive || !value.is(Kind::kText)) return value;
  return state.text(to_lower(state, value.text()));
}

template <typename T>
struct Keyed {
  Value key;
  T item;
};

// Python's sorted(): stable, in both directions.
template <typename T>
void sort_keyed(RenderState& state, std::vector<Keyed<T>>& all, bool reversed) {
  std::stable_sort(all.begin(), all.end(), [&](const auto& a, const auto& b) {
    return reversed ? less(state, b.key, a.key) : less(state, a.key, b.key);
  });
}

Value sort(RenderState& state, const Value& input, const Bound& arguments) {
  const std::optional<AttributePath> path = path_of(state, arguments[2]);
  std::vector<Keyed<Value>> all;
  for (const Value& item : elements(state, input)) {
    Value key = comparable(state, path ? path->of(state, item) : item, flag(arguments[1]));
    // Jinja compares attributes as lists of one, whose equality is asked first: what is undefined
    // everywhere keeps its order, though undefined values themselves cannot be compared.
    if (path) key = state.list({key});
    all.push_back({.key = std::move(key), .item = item});
  }
  sort_keyed(state, all, flag(arguments[0]));
  std::vector<Value> sorted;
  for (const auto& entry : all) sorted.push_back(entry.item);
  return state.list(std::move(sorted));
}

Value sort_mapping(RenderState& state, const Value& input, const Bound& arguments) {
  const std::string by = arguments[1] ? as_string(state, *arguments[1], "'by'") : "key";
  if (by != "key" && by != "value") state.fault("'dictsort' is by 'key' or by 'value'");
  std::vector<Keyed<std::pair<Value, Value>>> all;
  for (const auto& entry : entries_of(state, input, "dictsort")) {
    const Value& key = by == "key" ? entry.first : entry.second;
    all.push_back({.key = comparable(state, key, flag(arguments[0])), .item = entry});
  }
  sort_keyed(state, all, flag(arguments[2]));
  std::vector<std::pair<Value, Value>> sorted;
  for (const auto& entry : all) sorted.push_back(entry.item);
  return state.list(pairs(state, sorted));
}

Value unique(RenderState& state, const Value& input, const Bound& arguments) {
  const std::optional<AttributePath> path = path_of(state, arguments[1]);
  std::vector<Value> seen;
  std::vector<Value> kept;
  for (const Value& item : elements(state, input)) {
    const Value key = comparable(state, path ? path->of(state, item) : item, flag(arguments[0]));
    const bool known = std::any_of(seen.begin(), seen.end(),
                                   [&](const Value& other) { return equal(state, other, key); });
    if (known) continue;
    seen.push_back(key);
    kept.push_back(item);
  }
  return state.iterator(std::move(kept));
}

constexpr std::array kRows = {
    FilterRow{.name = "length", .bound = length},
    FilterRow{.name = "count", .bound = length},
    FilterRow{.name = "join", .signature = {.names = {"d", "attribute"}}, .bound = join},
    FilterRow{.name = "items", .bound = items},
    FilterRow{.name = "list", .bound = list},
    FilterRow{.name = "first", .bound = first},
    FilterRow{.name = "last", .bound = last},
    FilterRow{.name = "reverse", .bound = reverse},
    FilterRow{.name = "sort",
              .signature = {.names = {"reverse", "case_sensitive", "attribute"}},
              .bound = sort},
    FilterRow{.name = "dictsort",
              .signature = {.names = {"case_sensitive", "by", "reverse"}},
              .bound = sort_mapping},
    FilterRow{
        .name = "unique", .signature = {.names = {"case_sensitive", "attribute"}}, .bound = unique},
};

}  // namespace

std::span<const FilterRow> sequence_filters() {
  return kRows;
}

}  // namespace ingot::inference::jinja
