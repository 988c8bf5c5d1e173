#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "formats/base/words.h"
#include "inference/chat/jinja/builtins.h"
#include "inference/chat/jinja/operators.h"
#include "inference/chat/python_text.h"
#include "inference/tokenizer/characters.h"

// Filters that give text or a single value, and the methods of strings. An operation that both have
// is one function here: a filter takes the text of any value.

namespace ingot::inference::jinja {
namespace {

constexpr std::int64_t kMaxIndent = 1000;

// The text that is worked on.
Value own_text(Invocation& call) {
  if (!call.self.is(Kind::kText)) return call.state.text(to_text(call.state, call.self));
  call.state.scan(call.self.text().size());
  return call.self;
}

template <Ends kEnds>
Value strip_ends(Invocation& call) {
  const Value own = own_text(call);
  const std::string& text = own.text();
  if (!call.has(0)) return call.state.text(strip(text, kEnds));
  const std::string& set = as_text(call.state, call[0], "the characters to strip");
  call.state.charge(set.size() * sizeof(std::string_view));
  return call.state.text(strip(text, kEnds, set));
}

template <Case kCase>
Value change_case(Invocation& call) {
  const Value own = own_text(call);
  const std::string& text = own.text();
  if (has_foreign_case(text)) {
    call.state.unsupported("the case of letters outside ASCII cannot be changed");
  }
  call.state.charge(text.size());
  return call.state.text(with_case(text, kCase));
}

// str.replace(): an empty `old` matches before every character and at the end.
std::string text_replaced(RenderState& state, std::string_view text, const Value& old,
                          const Value& fresh, std::int64_t times) {
  std::string out;
  const std::string& wanted = old.text();
  while (times-- != 0) {
    const std::size_t at = find_text(text, wanted);
    if (at == std::string_view::npos) break;
    state.append(out, text.substr(0, at));
    state.append(out, fresh.text());
    text.remove_prefix(at + wanted.size());
    if (!wanted.empty()) continue;
    if (text.empty()) break;
    const std::size_t n = code_point_at(text, 0).n_bytes;
    state.append(out, text.substr(0, n));
    text.remove_prefix(n);
  }
  state.append(out, text);
  return out;
}

template <bool kIsFilter>
Value replace(Invocation& call) {
  RenderState& state = call.state;
  Value old = call[0];
  Value fresh = call[1];
  if (kIsFilter) {
    old = state.text(to_text(state, old));
    fresh = state.text(to_text(state, fresh));
  }
  as_text(state, old, "the text to replace");
  as_text(state, fresh, "the replacement");
  const std::int64_t times = call.has(2) ? as_integer(state, call[2], "the count") : -1;
  return state.text(text_replaced(state, own_text(call).text(), old, fresh, times));
}

Value split(Invocation& call) {
  const std::string& text = call.self.text();
  call.state.step(text.size() / 8);
  const std::int64_t max_splits = call.has(1) ? as_integer(call.state, call[1], "maxsplit") : -1;
  std::vector<std::string_view> parts;
  // Each part may double the list, and its separator has a byte at least.
  const auto charge_parts = [&](std::size_t most) {
    call.state.charge(2 * (most + 1) * sizeof(std::string_view));
  };
  if (!call.has(0)) {
    charge_parts(text.size() / 2);
    parts = split_at_space(text, max_splits);
  } else {
    const std::string& separator = as_text(call.state, call[0], "the separator of 'split'");
    if (separator.empty()) call.state.fault("the separator of 'split' is empty");
    charge_parts(static_cast<std::size_t>(std::ranges::count(text, separator.front())));
    parts = split_at(text, separator, max_splits);
  }
  std::vector<Value> items;
  call.state.reserve(items, parts.size());
  for (const std::string_view part : parts) items.push_back(call.state.text(part));
  return call.state.sequence(Sequence::Form::kList, std::move(items));
}

template <bool kAtStart>
Value has_affix(Invocation& call) {
  const std::string& text = call.self.text();
  const auto has = [&](const Value& affix) {
    const std::string& wanted = as_text(call.state, affix, "the text to look for");
    call.state.scan(wanted.size());
    return kAtStart ? text.starts_with(wanted) : text.ends_with(wanted);
  };
  if (!is_form(call[0], Sequence::Form::kTuple)) return Value::boolean(has(call[0]));
  const auto& choices = call[0].sequence().items;
  return Value::boolean(std::any_of(choices.begin(), choices.end(), has));
}

Value join_texts(Invocation& call) {
  std::string text;
  bool is_first = true;
  for (const Value& item : elements(call.state, call[0])) {
    const std::string& part = as_text(call.state, item, "an element to join");
    if (!std::exchange(is_first, false)) call.state.append(text, call.self.text());
    call.state.append(text, part);
  }
  return call.state.text(std::move(text));
}

// An indentation as the filters take it: a text, or how many spaces.
std::string indentation(RenderState& state, const Value& value) {
  if (value.is(Kind::kText)) {
    state.charge(value.text().size());
    return value.text();
  }
  const std::int64_t n = as_integer(state, value, "an indentation");
  if (n > kMaxIndent) state.beyond("an indentation of more than {}", kMaxIndent);
  return std::string(static_cast<std::size_t>(std::max<std::int64_t>(n, 0)), ' ');
}

Value indent(Invocation& call) {
  const std::string in = indentation(call.state, call.has(0) ? call[0] : Value::integer(4));
  const std::string& given = as_text(call.state, call.self, "what 'indent' is applied to");
  // A copy, and two views for each line.
  call.state.charge(in.size() + (given.size() + 1) * (1 + 2 * sizeof(std::string_view)));
  const std::string text = given + "\n";
  std::string out = truth(call[1]) ? in : "";
  bool is_first = true;
  for (const std::string_view line : split_lines(text)) {
    if (!std::exchange(is_first, false)) {
      call.state.append(out, "\n");
      if (truth(call[2]) || !line.empty()) call.state.append(out, in);
    }
    call.state.append(out, line);
  }
  return call.state.text(std::move(out));
}

Value to_json(Invocation& call) {
  PythonJsonStyle style;
  style.max_bytes =
      std::min<std::uint64_t>(call.state.limits().max_output_bytes, call.state.left() / 2);
  style.ensure_ascii = truth(call[0]);
  if (call.has(1)) style.indent = indentation(call.state, call[1]);
  if (call.has(2)) {
    const bool is_pair = is_list_or_tuple(call[2]) && call[2].sequence().items.size() == 2;
    if (!is_pair) call.state.fault("the separators of 'tojson' are no pair");
    const auto& pair = call[2].sequence().items;
    const std::string& of_items = as_text(call.state, pair[0], "a separator");
    const std::string& of_keys = as_text(call.state, pair[1], "a separator");
    call.state.charge(2 * of_items.size() + of_keys.size());
    style.item_separator = of_items;
    style.key_separator = of_keys;
    if (style.item_separator.empty()) call.state.unsupported("an empty separator of 'tojson'");
  }
  style.sort_keys = truth(call[3]);
  return call.state.text(json_text(call.state, call.self, style));
}

// Decimal numbers; anything else is the default.
Value to_integer(Invocation& call) {
  const Value& self = call.self;
  if (call.has(1)) call.state.unsupported("the base of 'int'");
  if (self.is(Kind::kUndefined)) call.state.fault("'int' of an undefined value");
  if (is_whole(self)) return Value::integer(whole(self));
  std::optional<double> real;
  if (self.is(Kind::kFloat)) real = self.real();
  if (self.is(Kind::kText)) {
    std::string_view digits = strip(self.text(), Ends::kBoth);
    if (digits.starts_with('+')) digits.remove_prefix(1);
    if (const auto number = number_from<std::int64_t>(digits)) return Value::integer(*number);
    real = number_from<double>(digits);
  }
  if (!real || !std::isfinite(*real)) return call.has(0) ? call[0] : Value::integer(0);
  constexpr double kEnd = 9223372036854775808.0;  // 2^63
  if (*real >= kEnd || *real < -kEnd) call.state.beyond("an integer does not fit 64 bits");
  return Value::integer(static_cast<std::int64_t>(*real));
}

Value or_default(Invocation& call) {
  const bool is_missing = call.self.is(Kind::kUndefined) || (truth(call[1]) && !truth(call.self));
  if (!is_missing) return call.self;
  return call[0].is_absent() ? call.state.text(std::string()) : call[0];
}

constexpr std::array kMethods = {
    Builtin{"split", {"sep", "maxsplit"}, 0, split},
    Builtin{"strip", {"chars"}, 0, strip_ends<Ends::kBoth>},
    Builtin{"lstrip", {"chars"}, 0, strip_ends<Ends::kLeft>},
    Builtin{"rstrip", {"chars"}, 0, strip_ends<Ends::kRight>},
    Builtin{"startswith", {"affix"}, 1, has_affix<true>},
    Builtin{"endswith", {"affix"}, 1, has_affix<false>},
    Builtin{"replace", {"old", "new", "count"}, 2, replace<false>},
    Builtin{"upper", {}, 0, change_case<Case::kUpper>},
    Builtin{"lower", {}, 0, change_case<Case::kLower>},
    Builtin{"title", {}, 0, change_case<Case::kTitle>},
    Builtin{"capitalize", {}, 0, change_case<Case::kCapitalized>},
    Builtin{"join", {"iterable"}, 1, join_texts},
};

constexpr std::array kTextFilters = {
    Builtin{"tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}, 0, to_json},
    Builtin{"trim", {"chars"}, 0, strip_ends<Ends::kBoth>},
    Builtin{"string", {}, 0, own_text},
    // No text is escaped here, so text that must not be is plain text.
    Builtin{"safe", {}, 0, own_text},
    Builtin{"int", {"default", "base"}, 0, to_integer},
    Builtin{"upper", {}, 0, change_case<Case::kUpper>},
    Builtin{"lower", {}, 0, change_case<Case::kLower>},
    Builtin{"title", {}, 0, change_case<Case::kWords>},
    Builtin{"capitalize", {}, 0, change_case<Case::kCapitalized>},
    Builtin{"replace", {"old", "new", "count"}, 2, replace<true>},
    Builtin{"indent", {"width", "first", "blank"}, 0, indent},
    Builtin{"default", {"default_value", "boolean"}, 0, or_default},
    Builtin{"d", {"default_value", "boolean"}, 0, or_default},
};

}  // namespace

std::span<const Builtin> text_methods() {
  return kMethods;
}

std::span<const Builtin> text_filters() {
  return kTextFilters;
}

}  // namespace ingot::inference::jinja
