#include "formats/json/python_words.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <system_error>

#include "formats/base/error.h"
#include "formats/json/json.h"

namespace ingot::formats {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A string of one control character has a word's place in a text, and its length where that can be.
struct PythonWord {
  std::string_view word, in_text, string;
  double value;
};
constexpr std::array kWords = {
    PythonWord{"-Infinity", "\"\\u0001\" ", "\x01", -kInfinity},
    PythonWord{"Infinity", "\"\\u0002\"", "\x02", kInfinity},
    PythonWord{"NaN", "\"\\u0003\"", "\x03", std::numeric_limits<double>::quiet_NaN()},
};

// True if the text before `rest` names a member.
bool is_key_text(std::string_view rest) {
  const std::size_t next = rest.find_first_not_of(" \t\r\n");
  return next != std::string_view::npos && rest[next] == ':';
}

// Bytes of a text, and other bytes in their place.
struct Change {
  std::size_t n_bytes = 0;  // 0: none here
  std::string text = {};
};

// A copy with the changes that find(rest) makes outside of strings; empty without changes.
template <typename Find>
std::string changed_outside_strings(std::string_view text, const Find& find) {
  std::string copy;
  std::size_t copied = 0;
  bool is_in_string = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (is_in_string && text[at] == '\\') {
      ++at;
    } else if (text[at] == '"') {
      is_in_string = !is_in_string;
    } else if (!is_in_string) {
      const Change change = find(text.substr(at));
      if (change.n_bytes == 0) continue;
      copy.append(text.substr(copied, at - copied)).append(change.text);
      at += change.n_bytes - 1;
      copied = at + 1;
    }
  }
  return copied == 0 ? copy : copy.append(text.substr(copied));
}

// A copy with every word as its string; empty where the text has none outside of strings.
std::string with_strings(std::string_view text) {
  return changed_outside_strings(text, [](std::string_view rest) -> Change {
    const auto* const word = std::ranges::find_if(
        kWords, [&](const PythonWord& row) { return rest.starts_with(row.word); });
    if (word == kWords.end() || is_key_text(rest.substr(word->word.size()))) return {};
    return {.n_bytes = word->word.size(), .text = std::string(word->in_text)};
  });
}

template <typename Change>
void for_each_scalar(Json& value, const Change& change) {
  if (!value.is_structured()) return change(value);
  for (Json& member : value) for_each_scalar(member, change);
}

bool is_finite(const Json& value) {
  if (value.is_structured()) return std::ranges::all_of(value, is_finite);
  return !value.is_number_float() || std::isfinite(value.get<double>());
}

bool is_long_integer(std::string_view number) {
  const bool is_negative = number.starts_with('-');
  if (number.find_first_not_of("0123456789", is_negative ? 1 : 0) != std::string_view::npos)
    return false;
  std::int64_t negative = 0;
  std::uint64_t positive = 0;
  const char *const begin = number.data(), *const end = begin + number.size();
  const std::errc fault = is_negative ? std::from_chars(begin, end, negative).ec
                                      : std::from_chars(begin, end, positive).ec;
  return fault == std::errc::result_out_of_range;
}

const PythonWord& word_of(double value) {
  if (std::isnan(value)) return kWords[2];
  return value < 0 ? kWords[0] : kWords[1];
}

Json parse_with_words(std::string_view text, std::string_view where,
                      Json (*parse)(std::string_view, std::string_view)) {
  const std::string changed = with_strings(text);
  if (changed.empty()) return parse(text, where);
  if (text.find("\\u000") != std::string_view::npos) {
    throw Error(ErrorCode::kUnsupported,
                "holds Infinity or NaN, which JSON does not have, and also strings with control "
                "characters (write null or a number)")
        .in_file(where);
  }
  Json document = parse(changed, where);
  for_each_scalar(document, [](Json& value) {
    if (!value.is_string()) return;
    const auto* const word =
        std::ranges::find(kWords, value.get_ref<const std::string&>(), &PythonWord::string);
    if (word != kWords.end()) value = word->value;
  });
  return document;
}

}  // namespace

Json parse_python_json(std::string_view text, std::string_view where) {
  return parse_with_words(text, where, parse_json);
}

Json parse_python_config(std::string_view text, std::string_view where) {
  return parse_with_words(text, where, parse_config);
}

std::string with_rounded_integers(std::string_view text) {
  constexpr std::string_view kOfNumbers = "0123456789+-.eE";
  return changed_outside_strings(text, [&](std::string_view rest) -> Change {
    if (kOfNumbers.find(rest.front()) == std::string_view::npos) return {};
    const std::string_view number = rest.substr(0, rest.find_first_not_of(kOfNumbers));
    // Every number is taken whole, so that none is found inside of another.
    return {.n_bytes = number.size(),
            .text = std::string(number) + (is_long_integer(number) ? ".0" : "")};
  });
}

std::string dump_with_words(const Json& value, int indent, char indent_character,
                            bool escapes_non_ascii) {
  if (is_finite(value)) return value.dump(indent, indent_character, escapes_non_ascii);
  Json copy = value;
  for_each_scalar(copy, [](Json& scalar) {
    if (!is_finite(scalar)) scalar = word_of(scalar.get<double>()).string;
  });
  std::string text = copy.dump(indent, indent_character, escapes_non_ascii);
  for (const PythonWord& row : kWords) {
    const std::string_view quoted = row.in_text.substr(0, row.in_text.rfind('"') + 1);
    for (std::size_t at = 0; (at = text.find(quoted, at)) != std::string::npos;)
      text.replace(at, quoted.size(), row.word);
  }
  return text;
}

}  // namespace ingot::formats
