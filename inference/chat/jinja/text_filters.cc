#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <string>
#include <system_error>

#include <fmt/format.h>

#include "inference/chat/jinja/code_points.h"
#include "inference/chat/jinja/filters.h"
#include "inference/chat/jinja/json_values.h"
#include "inference/chat/jinja/letter_case.h"
#include "inference/chat/jinja/replace_text.h"
#include "inference/chat/jinja/text_form.h"
#include "inference/chat/python_json.h"

namespace ingot::inference::jinja {
namespace {

constexpr std::int64_t kMaxIndent = 1000;

std::string spaces(RenderState& state, std::int64_t n) {
  if (n > kMaxIndent) state.beyond(fmt::format("an indentation of more than {}", kMaxIndent));
  return std::string(n > 0 ? static_cast<std::size_t>(n) : 0, ' ');
}

bool is_given(const std::optional<Value>& value) {
  return value && !value->is(Kind::kNone);
}

std::string indentation(RenderState& state, const Value& value) {
  if (value.is(Kind::kText)) return value.text();
  return spaces(state, as_integer(state, value, "an indentation"));
}

Value to_json(RenderState& state, const Value& input, const Bound& arguments) {
  PythonJsonStyle style;
  style.max_bytes = state.limits().max_output_bytes;
  style.ensure_ascii = flag(arguments[0]);
  if (is_given(arguments[1])) style.indent = indentation(state, *arguments[1]);
  if (is_given(arguments[2])) {
    const Value& separators = *arguments[2];
    const bool is_pair = separators.is(Kind::kSequence) && separators.sequence().items.size() == 2;
    if (!is_pair) state.fault("the separators of 'tojson' are no pair");
    style.item_separator = as_string(state, separators.sequence().items[0], "a separator");
    style.key_separator = as_string(state, separators.sequence().items[1], "a separator");
    if (style.item_separator.empty()) state.unsupported("an empty separator of 'tojson'");
  }
  style.sort_keys = flag(arguments[3]);
  // Python sorts keys before it makes strings of them.
  const formats::Json json =
      json_from_value(state, input, style.sort_keys ? JsonKeys::kText : JsonKeys::kAny);
  return state.text(python_json(json, style));
}

template <std::string (*kChange)(RenderState&, std::string_view)>
Value change_case(RenderState& state, const Value& input, const Bound& /*arguments*/) {
  return state.text(kChange(state, to_text(state, input)));
}

// The filter's words, unlike those of str.title(), begin only behind space, hyphens and brackets.
Value title(RenderState& state, const Value& input, const Bound& /*arguments*/) {
  const std::string text = to_text(state, input);
  std::string out;
  std::size_t begin = 0;
  const auto flush = [&](std::size_t end) {
    out += to_capitalized(state, std::string_view(text).substr(begin, end - begin));
    begin = end;
  };
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t at = i;
    const char32_t c = next_code_point(text, i);
    const bool separates = is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    if (!separates) continue;
    flush(at);
    out += std::string_view(text).substr(at, i - at);
    begin = i;
  }
  flush(text.size());
  return state.text(std::move(out));
}

Value trim(RenderState& state, const Value& input, const Bound& arguments) {
  const std::string text = to_text(state, input);
  if (!is_given(arguments[0])) return state.text(strip(text, Ends::kBoth));
  const std::string& set = as_string(state, *arguments[0], "the characters to trim");
  return state.text(strip(text, Ends::kBoth, set));
}

Value string(RenderState& state, const Value& input, const Bound& /*arguments*/) {
  return input.is(Kind::kText) ? input : state.text(to_text(state, input));
}

Value replace(RenderState& state, const Value& input, const Bound& arguments) {
  const std::string old = to_text(state, *arguments[0]);
  const std::string fresh = to_text(state, *arguments[1]);
  const std::int64_t n =
      is_given(arguments[2]) ? as_integer(state, *arguments[2], "the count") : -1;
  return state.text(
      replace_text(state, to_text(state, input), {.old = old, .fresh = fresh, .max_times = n}));
}

Value indent(RenderState& state, const Value& input, const Bound& arguments) {
  const std::string in = arguments[0] ? indentation(state, *arguments[0]) : spaces(state, 4);
  const bool indents_blank = flag(arguments[2]);
  const std::string text = as_string(state, input, "what 'indent' is applied to") + "\n";
  std::string out = flag(arguments[1]) ? in : "";
  bool is_first = true;
  for (const std::string_view line : split_lines(text)) {
    state.charge(in.size() + line.size());
    if (!is_first) {
      out += '\n';
      if (indents_blank || !line.empty()) out += in;
    }
    is_first = false;
    out += line;
  }
  return state.text(std::move(out));
}

Value or_default(RenderState& state, const Value& input, const Bound& arguments) {
  const bool is_missing = input.is(Kind::kUndefined) || (flag(arguments[1]) && !truth(input));
  if (!is_missing) return input;
  return arguments[0] ? *arguments[0] : state.text(std::string_view());
}

// A decimal number as Python's int() and float() read it: single underscores between digits.
std::optional<std::string> plain_digits(std::string_view text) {
  text = strip(text, Ends::kBoth);
  std::string digits;
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      digits += text[i];
    } else if (i == 0 || i + 1 == text.size() || !is_digit(text[i - 1]) || !is_digit(text[i + 1])) {
      return std::nullopt;
    }
  }
  if (digits.starts_with('+')) {
    digits.erase(0, 1);
    if (digits.starts_with('-')) return std::nullopt;
  }
  return digits;
}

std::optional<Value> truncated(RenderState& state, double value) {
  if (!std::isfinite(value)) return std::nullopt;
  constexpr double kLimit = 9223372036854775808.0;  // 2^63
  if (value >= kLimit || value < -kLimit) state.beyond("an integer does not fit 64 bits");
  return Value::integer(static_cast<std::int64_t>(value));
}

std::optional<Value> parse_number(RenderState& state, std::string_view text) {
  const std::optional<std::string> digits = plain_digits(text);
  if (!digits || digits->empty()) return std::nullopt;
  const char* const end = digits->data() + digits->size();
  std::int64_t whole = 0;
  const auto parsed = std::from_chars(digits->data(), end, whole);
  if (parsed.ptr == end) {
    if (parsed.ec != std::errc()) state.beyond("an integer does not fit 64 bits");
    return Value::integer(whole);
  }
  double real = 0;
  const auto parsed_real = std::from_chars(digits->data(), end, real);
  if (parsed_real.ptr != end || parsed_real.ec != std::errc()) return std::nullopt;
  return truncated(state, real);
}

Value to_integer(RenderState& state, const Value& input, const Bound& arguments) {
  if (arguments[1]) state.unsupported("the base of 'int'");
  std::optional<Value> number;
  if (input.is(Kind::kInteger) || input.is(Kind::kBoolean)) {
    number = Value::integer(as_integer(state, input, "a number"));
  } else if (input.is(Kind::kFloat)) {
    number = truncated(state, input.real());
  } else if (input.is(Kind::kText)) {
    number = parse_number(state, input.text());
  } else if (input.is(Kind::kUndefined)) {
    state.fault("'int' of an undefined value");
  }
  if (number) return *number;
  return arguments[0] ? *arguments[0] : Value::integer(0);
}

constexpr Signature kDefault = {.names = {"default_value", "boolean"}, .n_required = 0};

constexpr std::array kRows = {
    FilterRow{.name = "tojson",
              .signature = {.names = {"ensure_ascii", "indent", "separators", "sort_keys"}},
              .bound = to_json},
    FilterRow{.name = "trim", .signature = {.names = {"chars"}}, .bound = trim},
    FilterRow{.name = "string", .bound = string},
    FilterRow{.name = "int", .signature = {.names = {"default", "base"}}, .bound = to_integer},
    FilterRow{.name = "upper", .bound = change_case<to_upper>},
    FilterRow{.name = "lower", .bound = change_case<to_lower>},
    FilterRow{.name = "capitalize", .bound = change_case<to_capitalized>},
    FilterRow{.name = "title", .bound = title},
    FilterRow{.name = "replace",
              .signature = {.names = {"old", "new", "count"}, .n_required = 2},
              .bound = replace},
    FilterRow{.name = "default", .signature = kDefault, .bound = or_default},
    FilterRow{.name = "d", .signature = kDefault, .bound = or_default},
    // Nothing is escaped here, so text that must not be is text.
    FilterRow{.name = "safe", .bound = string},
    FilterRow{
        .name = "indent", .signature = {.names = {"width", "first", "blank"}}, .bound = indent},
};

}  // namespace

std::span<const FilterRow> text_filters() {
  return kRows;
}

}  // namespace ingot::inference::jinja
