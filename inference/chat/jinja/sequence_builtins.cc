#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "formats/base/words.h"
#include "inference/chat/jinja/builtins.h"
#include "inference/chat/jinja/operators.h"
#include "inference/chat/python_text.h"

// Filters over sequences and mappings, and the methods of lists and mappings.

namespace ingot::inference::jinja {
namespace {

using Form = Sequence::Form;

// The `attribute=` of filters: "a.b.0" is value['a']['b'][0], an integer is an index, and an empty
// path is the value itself.
class Path {
 public:
  Path(RenderState& state, const Value& attribute) : state_(state) {
    if (attribute.is(Kind::kUndefined) || attribute.is(Kind::kNone)) return;
    if (attribute.is(Kind::kInteger)) {
      steps_.push_back(attribute);
      return;
    }
    const std::string& text = as_text(state, attribute, "an attribute");
    if (text.find(',') != std::string::npos) state.unsupported("several attributes at once");
    state.step(text.size());
    state.charge(text.size() * 2 * sizeof(std::string_view));
    for (const std::string_view part : split_at(text, ".", -1)) {
      const auto index = number_from<std::int64_t>(part);
      const bool is_index = index && part[0] != '-';
      state.push(steps_, is_index ? Value::integer(*index) : state.text(part));
    }
  }

  [[nodiscard]] Value follow(Value value) const {
    for (const Value& step : steps_) value = get_item(state_, value, step);
    return value;
  }

 private:
  RenderState& state_;
  std::vector<Value> steps_;
};

enum class Side : std::uint8_t { kKeys, kValues, kItems };

std::vector<Value> entries(RenderState& state, const Value& mapping, Side side) {
  std::vector<Value> items;
  state.reserve(items, mapping.mapping().entries.size());
  for (const auto& [key, value] : mapping.mapping().entries) {
    if (side != Side::kItems) {
      items.push_back(side == Side::kKeys ? key : value);
      continue;
    }
    std::vector<Value> pair;
    state.reserve(pair, 2);
    pair = {key, value};
    items.push_back(state.sequence(Form::kTuple, std::move(pair)));
  }
  return items;
}

void require_mapping(Invocation& call, std::string_view filter) {
  if (call.self.is(Kind::kMapping)) return;
  call.state.fault("'{}' of a {} (a mapping is needed)", filter, type_name(call.self));
}

Value length(Invocation& call) {
  const Value& self = call.self;
  if (self.is(Kind::kUndefined)) return Value::integer(0);
  if (self.is(Kind::kText)) {
    call.state.scan(self.text().size());
    return Value::count(code_point_count(self.text()));
  }
  if (self.is(Kind::kMapping)) return Value::count(self.mapping().entries.size());
  if (!self.is(Kind::kSequence) || is_form(self, Form::kIterator)) {
    call.state.fault("a {} has no length", type_name(self));
  }
  return Value::count(self.sequence().items.size());
}

Value join(Invocation& call) {
  const std::string separator = to_text(call.state, call[0]);
  const Path path(call.state, call[1]);
  std::string text;
  bool is_first = true;
  for (const Value& item : elements(call.state, call.self)) {
    if (!std::exchange(is_first, false)) call.state.append(text, separator);
    call.state.append(text, to_text(call.state, path.follow(item)));
  }
  return call.state.text(std::move(text));
}

Value items(Invocation& call) {
  if (call.self.is(Kind::kUndefined)) return call.state.sequence(Form::kIterator, {});
  require_mapping(call, "items");
  return call.state.sequence(Form::kIterator, entries(call.state, call.self, Side::kItems));
}

template <bool kIsFirst>
Value end_element(Invocation& call) {
  if (!kIsFirst && is_form(call.self, Form::kIterator)) {
    call.state.fault("'last' of an iterator (make it a list first)");
  }
  const std::vector<Value> all = elements(call.state, call.self);
  if (all.empty()) return call.state.undefined("an element of nothing");
  return kIsFirst ? all.front() : all.back();
}

Value reverse(Invocation& call) {
  const bool is_iterator = is_form(call.self, Form::kIterator);
  std::vector<Value> all = elements(call.state, call.self);
  std::reverse(all.begin(), all.end());
  if (!call.self.is(Kind::kText)) {
    return call.state.sequence(is_iterator ? Form::kList : Form::kIterator, std::move(all));
  }
  std::string text;
  for (const Value& character : all) call.state.append(text, character.text());
  return call.state.text(std::move(text));
}

// The key by which elements are compared: without case unless asked for.
Value comparable(RenderState& state, const Value& value, bool case_sensitive) {
  if (case_sensitive || !value.is(Kind::kText)) return value;
  if (has_foreign_case(value.text())) {
    state.unsupported("the case of letters outside ASCII cannot be changed");
  }
  state.charge(value.text().size());
  return state.text(with_case(value.text(), Case::kLower));
}

struct Order {
  bool is_reversed = false, case_sensitive = false;
};

// Python's sorted(): stable, in both directions.
Value sorted(RenderState& state, const std::vector<Value>& all, const Path& path,
             const Order& order) {
  std::vector<std::pair<Value, Value>> keyed;
  state.reserve(keyed, 2 * all.size());  // twice: sorting needs as much again
  for (const Value& item : all) {
    Value key = comparable(state, path.follow(item), order.case_sensitive);
    // Jinja compares attributes as lists of one, whose equality comes first: elements that are
    // undefined everywhere keep their order, though undefined values themselves cannot be compared.
    std::vector<Value> compared;
    state.push(compared, std::move(key));
    keyed.emplace_back(state.sequence(Form::kList, std::move(compared)), item);
  }
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return order.is_reversed ? less(state, b.first, a.first) : less(state, a.first, b.first);
  });
  std::vector<Value> items;
  state.reserve(items, keyed.size());
  for (const auto& entry : keyed) items.push_back(entry.second);
  return state.sequence(Form::kList, std::move(items));
}

Value sort(Invocation& call) {
  const Path path(call.state, call[2]);
  return sorted(call.state, elements(call.state, call.self), path,
                {.is_reversed = truth(call[0]), .case_sensitive = truth(call[1])});
}

Value sort_mapping(Invocation& call) {
  require_mapping(call, "dictsort");
  const std::string by = call.has(1) ? as_text(call.state, call[1], "'by'") : "key";
  if (by != "key" && by != "value") call.state.fault("'dictsort' is by 'key' or by 'value'");
  const Path path(call.state, Value::integer(by == "key" ? 0 : 1));
  return sorted(call.state, entries(call.state, call.self, Side::kItems), path,
                {.is_reversed = truth(call[2]), .case_sensitive = truth(call[0])});
}

Value unique(Invocation& call) {
  const Path path(call.state, call[1]);
  std::vector<Value> seen, kept;
  for (const Value& item : elements(call.state, call.self)) {
    const Value key = comparable(call.state, path.follow(item), truth(call[0]));
    const auto is_key = [&](const Value& other) { return equal(call.state, other, key); };
    if (std::any_of(seen.begin(), seen.end(), is_key)) continue;
    call.state.push(seen, key);
    call.state.push(kept, item);
  }
  return call.state.sequence(Form::kIterator, std::move(kept));
}

// Takes the first positional argument off: the name of a filter or test.
Value take_first(Arguments& arguments) {
  Value first = arguments.positional.front();
  arguments.positional.erase(arguments.positional.begin());
  return first;
}

Value map(Invocation& call) {
  RenderState& state = call.state;
  const Nesting nesting = state.deeper();
  std::vector<Value> mapped;
  if (call.arguments.positional.empty()) {
    static constexpr std::array<std::string_view, 2> kNames = {"attribute", "default"};
    bind(state, "map", {kNames, 1}, call.arguments);
    const Path path(state, call[0]);
    for (const Value& item : elements(state, call.self)) {
      Value value = path.follow(item);
      if (call.has(1) && value.is(Kind::kUndefined)) value = call[1];
      state.push(mapped, std::move(value));
    }
  } else {
    const Value name = take_first(call.arguments);
    const Builtin* filter = find_filter(as_text(state, name, "the filter of 'map'"));
    if (filter == nullptr) state.unsupported("the filter '{}'", name.text());
    for (const Value& item : elements(state, call.self)) {
      state.push(mapped, call_builtin(state, *filter, item, call.arguments));
    }
  }
  return state.sequence(Form::kIterator, std::move(mapped));
}

template <bool kKeeps, bool kByAttribute>
Value select(Invocation& call) {
  RenderState& state = call.state;
  if (kByAttribute && call.arguments.positional.empty()) {
    state.fault("the attribute to select by is missing");
  }
  const Path path(state, kByAttribute ? take_first(call.arguments) : Value());
  const Builtin* test = nullptr;
  if (!call.arguments.positional.empty()) {
    const Value name = take_first(call.arguments);
    test = find_builtin(tests(), as_text(state, name, "the name of a test"));
    if (test == nullptr) state.unsupported("the test '{}'", name.text());
  }
  std::vector<Value> kept;
  for (const Value& item : elements(state, call.self)) {
    const Value value = path.follow(item);
    const bool passes =
        truth(test == nullptr ? value : call_builtin(state, *test, value, call.arguments));
    if (passes == kKeeps) state.push(kept, item);
  }
  return state.sequence(Form::kIterator, std::move(kept));
}

Value append(Invocation& call) {
  call.state.push(call.self.sequence().items, call[0]);
  return Value::none();
}

Value extend(Invocation& call) {
  const std::vector<Value> more = elements(call.state, call[0]);
  for (const Value& value : more) call.state.push(call.self.sequence().items, value);
  return Value::none();
}

Value pop(Invocation& call) {
  auto& items = call.self.sequence().items;
  const auto n = static_cast<std::int64_t>(items.size());
  std::int64_t at = call.has(0) ? as_integer(call.state, call[0], "the index of 'pop'") : -1;
  if (at < 0) at += n;
  if (at < 0 || at >= n) call.state.fault("'pop' from place {} of {}", at, n);
  call.state.step(items.size() / 8);
  const Value taken = items[static_cast<std::size_t>(at)];
  items.erase(items.begin() + at);
  return taken;
}

Value index(Invocation& call) {
  const auto& items = call.self.sequence().items;
  const auto found = std::find_if(items.begin(), items.end(), [&](const Value& item) {
    return equal(call.state, item, call[0]);
  });
  if (found == items.end()) call.state.fault("'index' of what is not in the list");
  return Value::integer(found - items.begin());
}

template <Side kSide>
Value view(Invocation& call) {
  return call.state.sequence(Form::kView, entries(call.state, call.self, kSide));
}

Value get(Invocation& call) {
  const Value* found = find_entry(call.state, call.self.mapping(), call[0]);
  if (found != nullptr) return *found;
  return call[1].is_absent() ? Value::none() : call[1];
}

Value update(Invocation& call) {
  update_mapping(call, "update", call.self.mapping());
  return Value::none();
}

Value to_list(Invocation& call) {
  return call.state.sequence(Form::kList, elements(call.state, call.self));
}

constexpr std::array kSequenceFilters = {
    Builtin{"length", {}, 0, length},
    Builtin{"count", {}, 0, length},
    Builtin{"join", {"d", "attribute"}, 0, join},
    Builtin{"items", {}, 0, items},
    Builtin{"list", {}, 0, to_list},
    Builtin{"first", {}, 0, end_element<true>},
    Builtin{"last", {}, 0, end_element<false>},
    Builtin{"reverse", {}, 0, reverse},
    Builtin{"sort", {"reverse", "case_sensitive", "attribute"}, 0, sort},
    Builtin{"dictsort", {"case_sensitive", "by", "reverse"}, 0, sort_mapping},
    Builtin{"unique", {"case_sensitive", "attribute"}, 0, unique},
    Builtin{"map", {}, 0, map, true},
    Builtin{"select", {}, 0, select<true, false>, true},
    Builtin{"reject", {}, 0, select<false, false>, true},
    Builtin{"selectattr", {}, 0, select<true, true>, true},
    Builtin{"rejectattr", {}, 0, select<false, true>, true},
};

constexpr std::array kListMethods = {
    Builtin{"append", {"object"}, 1, append},
    Builtin{"extend", {"iterable"}, 1, extend},
    Builtin{"pop", {"index"}, 0, pop},
    Builtin{"index", {"value"}, 1, index},
};

constexpr std::array kMappingMethods = {
    Builtin{"items", {}, 0, view<Side::kItems>},   Builtin{"keys", {}, 0, view<Side::kKeys>},
    Builtin{"values", {}, 0, view<Side::kValues>}, Builtin{"get", {"key", "default"}, 1, get},
    Builtin{"update", {}, 0, update, true},
};

}  // namespace

std::span<const Builtin> sequence_filters() {
  return kSequenceFilters;
}

std::span<const Builtin> list_methods() {
  return kListMethods;
}

std::span<const Builtin> mapping_methods() {
  return kMappingMethods;
}

}  // namespace ingot::inference::jinja
