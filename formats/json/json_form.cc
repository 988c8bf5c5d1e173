#include "formats/json/json_form.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "formats/base/error.h"
#include "formats/json/json.h"

namespace ingot::formats {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";
constexpr std::size_t kMaxIndent = 16;  // a margin is written once a line

// True if a blank follows the sign after the string at the beginning of a text.
bool is_spaced(std::string_view text) {
  if (!text.starts_with('"')) return true;
  std::size_t at = 1;
  while (at < text.size() && text[at] != '"') at += text[at] == '\\' ? 2U : 1U;
  return at + 2 >= text.size() || text[at + 2] == ' ';
}

// Strings hold no line breaks: each break ends an element or is next to a bracket.
std::string on_one_line(std::string_view text) {
  std::string line;
  line.reserve(text.size());
  for (const char c : text) {
    if (c != '\n') {
      line += c;
    } else if (line.back() == ',') {
      line += ' ';
    }
  }
  return line;
}

// The words of nulls and of numbers that are not finite, in their order.
void collect_words(const Json& value, std::vector<std::string_view>& words) {
  if (value.is_structured()) {
    for (const Json& member : value) collect_words(member, words);
  } else if (value.is_null()) {
    words.emplace_back("null");
  } else if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    const auto number = value.get<double>();
    words.emplace_back(std::isnan(number) ? "NaN" : number < 0 ? "-Infinity" : "Infinity");
  }
}

// Json::dump, with Python's words for numbers that are not finite, where the library writes null.
std::string dump_with_words(const Json& value, const JsonForm& form, int indent) {
  const std::string text = value.dump(indent, form.indent_character, form.escapes_non_ascii);
  std::vector<std::string_view> words;
  collect_words(value, words);
  std::string changed;
  changed.reserve(text.size());
  bool is_in_string = false;
  for (std::size_t at = 0, word = 0; at < text.size(); ++at) {
    if (!is_in_string && text[at] == 'n') {
      changed += words[word++];
      at += 3;
      continue;
    }
    changed += text[at];
    if (text[at] == '"') is_in_string = !is_in_string;
    if (text[at] == '\\') changed += text[++at];
  }
  return changed;
}

}  // namespace

JsonForm json_form_of(std::string_view text) {
  JsonForm form;
  form.has_final_newline = text.ends_with('\n');
  form.escapes_non_ascii = text.find("\\u") != std::string_view::npos &&
                           std::all_of(text.begin(), text.end(),
                                       [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  const std::size_t open = text.find_first_of("{[");
  if (open == std::string_view::npos) return form;
  const std::size_t first = text.find_first_not_of(kBlanks, open + 1);
  if (first == std::string_view::npos || text[first] == '}' || text[first] == ']') return form;
  const std::string_view before = text.substr(open + 1, first - open - 1);
  const std::size_t line_end = before.rfind('\n');
  if (line_end == std::string_view::npos) {
    form.indent = JsonForm::kOneLine;
    form.is_spaced = is_spaced(text.substr(first));
    return form;
  }
  const std::string_view margin = before.substr(line_end + 1);
  const bool is_regular =
      std::all_of(margin.begin(), margin.end(), [&](char c) { return c == margin.front(); });
  if (margin.size() > kMaxIndent || !is_regular) return form;
  form.indent = static_cast<int>(margin.size());
  if (!margin.empty()) form.indent_character = margin.front();
  return form;
}

std::string json_text(const Json& value, const JsonForm& form) {
  const bool is_joined = form.indent == JsonForm::kOneLine && form.is_spaced;
  try {
    std::string text = dump_with_words(value, form, is_joined ? 0 : form.indent);
    if (is_joined) text = on_one_line(text);
    if (form.has_final_newline) text += '\n';
    return text;
  } catch (const Json::exception&) {
    throw Error(ErrorCode::kCorrupt, "cannot be written as JSON: a text in it is not UTF-8");
  }
}

std::string json_text(const Json& value) {
  return json_text(value, JsonForm());
}

}  // namespace ingot::formats
