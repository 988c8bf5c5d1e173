#include "inference/chat/python_text.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <utf8proc.h>

#include "inference/tokenizer/characters.h"

namespace ingot::inference {
namespace {

bool ends_line(char32_t c) {
  return (c >= '\n' && c <= '\r') || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

char cased(char c, bool upper) {
  if (!is_letter(c)) return c;
  return static_cast<char>(upper ? c & ~0x20 : c | 0x20);
}

utf8proc_category_t unicode_category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

}  // namespace

std::size_t code_point_count(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned>(c) & 0xC0U) != 0x80U;
  }));
}

// Unlike the standard library's, whose time is the product of both lengths.
std::size_t find_text(std::string_view text, std::string_view wanted) {
  if (wanted.empty()) return 0;
  const void* const at = ::memmem(text.data(), text.size(), wanted.data(), wanted.size());
  return at == nullptr ? std::string_view::npos
                       : static_cast<std::size_t>(static_cast<const char*>(at) - text.data());
}

std::vector<std::string_view> characters(std::string_view text) {
  std::vector<std::string_view> found;
  found.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); i += found.back().size()) {
    found.push_back(text.substr(i, code_point_at(text, i).n_bytes));
  }
  return found;
}

bool is_space(char32_t c) {
  return is_white_space(c) || (c >= 0x1C && c <= 0x1F);
}

bool is_printable(char32_t c) {
  const utf8proc_category_t category = unicode_category(c);
  return c == ' ' || (category != UTF8PROC_CATEGORY_CN && category < UTF8PROC_CATEGORY_ZS);
}

std::string_view strip(std::string_view text, Ends ends, std::optional<std::string_view> set) {
  std::vector<std::string_view> members = characters(set.value_or(""));
  std::sort(members.begin(), members.end());
  const auto goes = [&](std::string_view character) {
    return set ? std::binary_search(members.begin(), members.end(), character)
               : is_space(code_point_at(character, 0).value);
  };
  while (ends != Ends::kRight && !text.empty()) {
    const std::size_t n = code_point_at(text, 0).n_bytes;
    if (!goes(text.substr(0, n))) break;
    text.remove_prefix(n);
  }
  while (ends != Ends::kLeft && !text.empty()) {
    const std::size_t n = code_point_before(text, text.size()).n_bytes;
    if (!goes(text.substr(text.size() - n))) break;
    text.remove_suffix(n);
  }
  return text;
}

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size();) {
    const auto [c, n] = code_point_at(text, i);
    const std::size_t end = std::exchange(i, i + n);
    if (!ends_line(c)) continue;
    if (c == '\r' && text.substr(i).starts_with('\n')) ++i;
    lines.push_back(text.substr(begin, end - begin));
    begin = i;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::vector<std::string_view> split_at_space(std::string_view text, std::int64_t max_splits) {
  std::vector<std::string_view> parts;
  for (text = strip(text, Ends::kLeft); !text.empty(); text = strip(text, Ends::kLeft)) {
    std::size_t end = text.size();
    if (max_splits < 0 || parts.size() < static_cast<std::size_t>(max_splits)) {
      for (end = 0; end < text.size();) {
        const auto [c, n] = code_point_at(text, end);
        if (is_space(c)) break;
        end += n;
      }
    }
    parts.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return parts;
}

std::vector<std::string_view> split_at(std::string_view text, std::string_view separator,
                                       std::int64_t max_splits) {
  std::vector<std::string_view> parts;
  while (max_splits < 0 || parts.size() < static_cast<std::size_t>(max_splits)) {
    const std::size_t at = find_text(text, separator);
    if (at == std::string_view::npos) break;
    parts.push_back(text.substr(0, at));
    text.remove_prefix(at + separator.size());
  }
  parts.push_back(text);
  return parts;
}

std::string with_case(std::string_view text, Case wanted) {
  std::string result(text);
  bool begins = true;
  for (char& c : result) {
    const char before = c;
    c = cased(c, wanted == Case::kUpper || (begins && wanted != Case::kLower));
    begins = (wanted == Case::kTitle && !is_letter(before)) ||
             (wanted == Case::kWords &&
              std::string_view(" \t\n\v\f\r-({[<").find(before) != std::string_view::npos);
  }
  return result;
}

bool has_foreign_case(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto [c, n] = code_point_at(text, i);
    i += n;
    if (c < 0x80) continue;
    const auto code = static_cast<utf8proc_int32_t>(c);
    const utf8proc_category_t category = unicode_category(c);
    if ((category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LT) ||
        utf8proc_toupper(code) != code || utf8proc_tolower(code) != code) {
      return true;
    }
  }
  return false;
}

}  // namespace ingot::inference
