#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <system_error>

#include <fmt/format.h>

#include "inference/chat/jinja/code_points.h"
#include "inference/chat/jinja/letter_case.h"
#include "inference/chat/jinja/methods.h"
#include "inference/chat/jinja/operators.h"
#include "inference/chat/jinja/replace_text.h"
#include "inference/chat/jinja/text_form.h"

namespace ingot::inference::jinja {
namespace {

bool is_absent(const std::optional<Value>& value) {
  return !value || value->is(Kind::kNone);
}

Value as_list(RenderState& state, const std::vector<std::string_view>& parts) {
  state.charge(parts.size() * sizeof(Value));
  std::vector<Value> items;
  items.reserve(parts.size());
  for (const std::string_view part : parts) items.push_back(state.text(part));
  return state.list(std::move(items));
}

Value split(RenderState& state, const Value& self, const Bound& arguments) {
  const std::string& text = self.text();
  state.step(text.size() / 8);
  const std::int64_t max_splits = arguments[1] ? as_integer(state, *arguments[1], "maxsplit") : -1;
  if (is_absent(arguments[0])) return as_list(state, split_at_space(text, max_splits));
  const std::string& separator = as_string(state, *arguments[0], "the separator of 'split'");
  if (separator.empty()) state.fault("the separator of 'split' is empty");
  return as_list(state, split_at(text, separator, max_splits));
}

template <Ends kEnds>
Value stripped(RenderState& state, const Value& self, const Bound& arguments) {
  state.scan(self.text().size());
  if (is_absent(arguments[0])) return state.text(strip(self.text(), kEnds));
  const std::string& set = as_string(state, *arguments[0], "the characters to strip");
  return state.text(strip(self.text(), kEnds, set));
}

template <bool kAtStart>
Value has_affix(RenderState& state, const Value& self, const Bound& arguments) {
  const std::string& text = self.text();
  const auto has = [&](const Value& affix) {
    const std::string& wanted = as_string(state, affix, "the text to look for");
    state.scan(wanted.size());
    return kAtStart ? text.starts_with(wanted) : text.ends_with(wanted);
  };
  const Value& affix = *arguments[0];
  if (affix.is(Kind::kSequence) && affix.sequence().form == Sequence::Form::kTuple) {
    const auto& choices = affix.sequence().items;
    return Value::boolean(std::any_of(choices.begin(), choices.end(), has));
  }
  return Value::boolean(has(affix));
}

Value replace(RenderState& state, const Value& self, const Bound& arguments) {
  const std::string& old = as_string(state, *arguments[0], "the text to replace");
  const std::string& fresh = as_string(state, *arguments[1], "the replacement");
  const std::int64_t n = arguments[2] ? as_integer(state, *arguments[2], "the count") : -1;
  return state.text(replace_text(state, self.text(), {.old = old, .fresh = fresh, .max_times = n}));
}

template <std::string (*kChange)(RenderState&, std::string_view)>
Value change_case(RenderState& state, const Value& self, const Bound& /*arguments*/) {
  return state.text(kChange(state, self.text()));
}

Value join(RenderState& state, const Value& self, const Bound& arguments) {
  std::string text;
  bool first = true;
  for (const Value& item : elements(state, *arguments[0])) {
    const std::string& part = as_string(state, item, "an element to join");
    state.charge(part.size() + self.text().size());
    if (!std::exchange(first, false)) text += self.text();
    text += part;
  }
  return state.text(std::move(text));
}

// "{}", "{0}" and "{name}"; conversions, formats and paths are not here.
Value format_field(RenderState& state, std::string_view field, std::size_t& n_automatic,
                   const Arguments& arguments) {
  if (field.find_first_of("!:.[{") != std::string_view::npos) {
    state.unsupported(fmt::format("the field '{{{}}}' of 'format'", field));
  }
  std::size_t index = 0;
  if (field.empty()) {
    index = n_automatic++;
  } else if (field[0] >= '0' && field[0] <= '9') {
    const auto parsed = std::from_chars(field.data(), field.data() + field.size(), index);
    if (parsed.ec != std::errc() || parsed.ptr != field.data() + field.size()) {
      state.fault(fmt::format("the field '{{{}}}' of 'format'", field));
    }
  } else {
    for (const auto& [name, value] : arguments.named) {
      if (name == field) return value;
    }
    state.fault(fmt::format("'format' has no argument '{}'", field));
  }
  if (index >= arguments.positional.size()) {
    state.fault(fmt::format("'format' has no argument {}", index));
  }
  return arguments.positional[index];
}

Value format(RenderState& state, const Value& self, Arguments&& arguments) {
  const std::string_view pattern = self.text();
  std::string text;
  std::size_t n_automatic = 0;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if ((c == '{' || c == '}') && pattern.substr(i + 1).starts_with(c)) {
      text += c;
      ++i;
    } else if (c == '{') {
      const std::size_t end = pattern.find('}', i);
      if (end == std::string_view::npos) state.fault("'format' of a '{' without its '}'");
      const std::string_view field = pattern.substr(i + 1, end - i - 1);
      text += to_text(state, format_field(state, field, n_automatic, arguments));
      i = end;
    } else if (c == '}') {
      state.fault("'format' of a '}' without its '{'");
    } else {
      text += c;
    }
  }
  return state.text(std::move(text));
}

constexpr Signature kNoArguments = {};
constexpr Signature kCharacters = {.names = {"chars"}, .n_required = 0};
constexpr Signature kAffix = {.names = {"affix"}, .n_required = 1};

constexpr std::array kRows = {
    MethodRow{.name = "split",
              .signature = {.names = {"sep", "maxsplit"}, .n_required = 0},
              .bound = split},
    MethodRow{.name = "strip", .signature = kCharacters, .bound = stripped<Ends::kBoth>},
    MethodRow{.name = "lstrip", .signature = kCharacters, .bound = stripped<Ends::kLeft>},
    MethodRow{.name = "rstrip", .signature = kCharacters, .bound = stripped<Ends::kRight>},
    MethodRow{.name = "startswith", .signature = kAffix, .bound = has_affix<true>},
    MethodRow{.name = "endswith", .signature = kAffix, .bound = has_affix<false>},
    MethodRow{.name = "replace",
              .signature = {.names = {"old", "new", "count"}, .n_required = 2},
              .bound = replace},
    MethodRow{.name = "upper", .signature = kNoArguments, .bound = change_case<to_upper>},
    MethodRow{.name = "lower", .signature = kNoArguments, .bound = change_case<to_lower>},
    MethodRow{.name = "title", .signature = kNoArguments, .bound = change_case<to_title>},
    MethodRow{
        .name = "capitalize", .signature = kNoArguments, .bound = change_case<to_capitalized>},
    MethodRow{.name = "join", .signature = {.names = {"iterable"}, .n_required = 1}, .bound = join},
    MethodRow{.name = "format", .open = format},
};

constexpr std::array<std::string_view, 34> kAbsent = {
    "casefold",     "center",       "count",     "encode",    "expandtabs",  "find",
    "format_map",   "index",        "isalnum",   "isalpha",   "isascii",     "isdecimal",
    "isdigit",      "isidentifier", "islower",   "isnumeric", "isprintable", "isspace",
    "istitle",      "isupper",      "ljust",     "maketrans", "partition",   "removeprefix",
    "removesuffix", "rfind",        "rindex",    "rjust",     "rpartition",  "rsplit",
    "splitlines",   "swapcase",     "translate", "zfill"};

}  // namespace

TypeMethods string_methods() {
  return {.rows = kRows, .absent = kAbsent};
}

}  // namespace ingot::inference::jinja
