#include "formats/json/json_form.h"

#include <algorithm>

#include "formats/base/error.h"
#include "formats/json/json.h"
#include "formats/json/python_words.h"

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
    std::string text = dump_with_words(value, is_joined ? 0 : form.indent, form.indent_character,
                                       form.escapes_non_ascii);
    if (is_joined) text = on_one_line(text);
    if (form.has_final_newline) text += '\n';
    return text;
  } catch (const Json::exception&) {
    // json_text() throws too, in its own words.
    return json_text(value);
  }
}

}  // namespace ingot::formats
