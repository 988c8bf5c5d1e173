#include "inference/chat/jinja/operators.h"

#include <algorithm>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "inference/chat/jinja/code_points.h"
#include "inference/chat/jinja/operand.h"

namespace ingot::inference::jinja {
namespace {

bool equal_items(RenderState& state, const std::vector<Value>& left,
                 const std::vector<Value>& right) {
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    [&](const Value& a, const Value& b) { return equal(state, a, b); });
}

bool equal_mappings(RenderState& state, const Mapping& left, const Mapping& right) {
  if (left.entries.size() != right.entries.size()) return false;
  return std::all_of(left.entries.begin(), left.entries.end(), [&](const auto& entry) {
    const Value* other = find_entry(state, right, entry.first);
    return other != nullptr && equal(state, entry.second, *other);
  });
}

// long double holds every 64-bit integer and every double, so the comparison is exact.
long double exact(const Value& value) {
  return value.is(Kind::kFloat) ? static_cast<long double>(value.real())
                                : static_cast<long double>(whole(value));
}

}  // namespace

void refuse_operands(const RenderState& state, std::string_view sign, const Value& left,
                     const Value& right) {
  for (const Value* side : {&left, &right}) {
    if (side->is(Kind::kUndefined) && side->undefined_name().name) {
      state.fault(fmt::format("'{}' is undefined", *side->undefined_name().name));
    }
  }
  state.fault(fmt::format("{} {} {} is not possible", type_name(left), sign, type_name(right)));
}

bool equal(RenderState& state, const Value& left, const Value& right) {
  const RenderState::Depth depth(state);
  state.step();
  if (is_whole(left) && is_whole(right)) return whole(left) == whole(right);
  if (is_number(left) && is_number(right)) return exact(left) == exact(right);
  if (left.kind() != right.kind()) return false;
  switch (left.kind()) {
    case Kind::kText:
      state.scan(std::min(left.text().size(), right.text().size()));
      return left.text() == right.text();
    case Kind::kSequence:
      if (!same_form(left, right)) return false;
      return &left.sequence() == &right.sequence() ||
             equal_items(state, left.sequence().items, right.sequence().items);
    case Kind::kMapping:
      return &left.mapping() == &right.mapping() ||
             equal_mappings(state, left.mapping(), right.mapping());
    case Kind::kNamespace:
      return &left.name_space() == &right.name_space();
    case Kind::kLoop:
      return &left.loop() == &right.loop();
    case Kind::kCallable:
      return &left.callable() == &right.callable();
    default:
      return true;  // two undefined, or two none
  }
}

bool less(RenderState& state, const Value& left, const Value& right) {
  const RenderState::Depth depth(state);
  state.step();
  if (is_whole(left) && is_whole(right)) return whole(left) < whole(right);
  if (is_number(left) && is_number(right)) return exact(left) < exact(right);
  if (left.is(Kind::kText) && right.is(Kind::kText)) {
    state.scan(std::min(left.text().size(), right.text().size()));
    // The order of UTF-8 bytes, compared as unsigned char, is the order of code points.
    return left.text() < right.text();
  }
  if (same_form(left, right) &&
      (is_list(left, Sequence::Form::kList) || is_list(left, Sequence::Form::kTuple))) {
    const std::vector<Value>& a = left.sequence().items;
    const std::vector<Value>& b = right.sequence().items;
    for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
      if (!equal(state, a[i], b[i])) return less(state, a[i], b[i]);
    }
    return a.size() < b.size();
  }
  refuse_operands(state, "<", left, right);
}

bool related(RenderState& state, Relation relation, const Value& left, const Value& right) {
  switch (relation) {
    case Relation::kEqual:
      return equal(state, left, right);
    case Relation::kNotEqual:
      return !equal(state, left, right);
    case Relation::kLess:
      return less(state, left, right);
    case Relation::kLessEqual:
      return less(state, left, right) || equal(state, left, right);
    case Relation::kGreater:
      return less(state, right, left);
    case Relation::kGreaterEqual:
      return less(state, right, left) || equal(state, left, right);
    case Relation::kIn:
      return contains(state, right, left);
    case Relation::kNotIn:
      break;
  }
  return !contains(state, right, left);
}

bool can_be_key(const Value& value) {
  return value.is(Kind::kText) || value.is(Kind::kNone) || value.is(Kind::kUndefined) ||
         is_number(value) || is_list(value, Sequence::Form::kTuple);
}

bool contains(RenderState& state, const Value& haystack, const Value& needle) {
  switch (haystack.kind()) {
    case Kind::kText:
      if (!needle.is(Kind::kText)) refuse_operands(state, "in", needle, haystack);
      state.scan(haystack.text().size());
      return haystack.text().find(needle.text()) != std::string::npos;
    case Kind::kMapping:
      if (!can_be_key(needle)) {
        state.fault(fmt::format("a {} cannot be a key", type_name(needle)));
      }
      return find_entry(state, haystack.mapping(), needle) != nullptr;
    case Kind::kSequence:
    case Kind::kUndefined: {
      const std::vector<Value> items = elements(state, haystack);
      return std::any_of(items.begin(), items.end(),
                         [&](const Value& item) { return equal(state, item, needle); });
    }
    default:
      refuse_operands(state, "in", needle, haystack);
  }
}

const Value* find_entry(RenderState& state, const Mapping& mapping, const Value& key) {
  if (key.is(Kind::kText)) return find_entry(state, mapping, key.text());
  if (!can_be_key(key)) return nullptr;
  for (const auto& [name, value] : mapping.entries) {
    if (equal(state, name, key)) return &value;
  }
  return nullptr;
}

const Value* find_entry(RenderState& state, const Mapping& mapping, std::string_view key) {
  for (const auto& [name, value] : mapping.entries) {
    state.step();
    if (name.is(Kind::kText) && name.text() == key) return &value;
  }
  return nullptr;
}

void set_entry(RenderState& state, Mapping& mapping, const Value& key, const Value& value) {
  if (!can_be_key(key)) state.fault(fmt::format("a {} cannot be a key", type_name(key)));
  for (auto& [name, old] : mapping.entries) {
    if (!equal(state, name, key)) continue;
    old = value;
    return;
  }
  state.charge(2 * sizeof(Value));
  mapping.entries.emplace_back(key, value);
}

std::vector<Value> elements(RenderState& state, const Value& value) {
  std::vector<Value> items;
  switch (value.kind()) {
    case Kind::kUndefined:
      break;
    case Kind::kText:
      state.step(value.text().size());
      for (const std::string_view character : characters(value.text())) {
        items.push_back(state.text(character));
      }
      break;
    case Kind::kSequence: {
      Sequence& sequence = value.sequence();
      state.step(sequence.items.size());
      if (sequence.form == Sequence::Form::kIterator) return std::exchange(sequence.items, {});
      return sequence.items;
    }
    case Kind::kMapping:
      state.step(value.mapping().entries.size());
      for (const auto& entry : value.mapping().entries) items.push_back(entry.first);
      break;
    default:
      state.fault(fmt::format("a {} cannot be iterated", type_name(value)));
  }
  return items;
}

}  // namespace ingot::inference::jinja
