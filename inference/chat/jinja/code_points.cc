#include "inference/chat/jinja/code_points.h"

#include <algorithm>
#include <array>

namespace ingot::inference::jinja {
namespace {

bool continues(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U;
}

// Unicode's White_Space and the four separators of ASCII, as CPython has it.
constexpr std::array<char32_t, 19> kSpaces = {0x1C,   0x1D,   0x1E,   0x1F,   ' ',    0x85,   0xA0,
                                              0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000, '\t',
                                              '\n',   '\v',   '\f',   '\r',   0x2000};

bool ends_line(char32_t c) {
  return (c >= '\n' && c <= '\r') || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

std::size_t previous(std::string_view text, std::size_t i) {
  do {
    --i;
  } while (continues(text[i]));
  return i;
}

}  // namespace

std::size_t code_point_count(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char byte) { return !continues(byte); }));
}

char32_t next_code_point(std::string_view text, std::size_t& i) {
  const auto lead = static_cast<unsigned char>(text[i++]);
  char32_t code_point = lead;
  if (lead >= 0xF0U) {
    code_point = lead & 0x07U;
  } else if (lead >= 0xE0U) {
    code_point = lead & 0x0FU;
  } else if (lead >= 0xC0U) {
    code_point = lead & 0x1FU;
  }
  while (i < text.size() && continues(text[i])) {
    code_point = (code_point << 6U) | (static_cast<unsigned char>(text[i++]) & 0x3FU);
  }
  return code_point;
}

void append_code_point(std::string& text, char32_t code_point) {
  const auto add = [&](char32_t byte) { text += static_cast<char>(byte); };
  const auto tail = [&](unsigned shift) { add(0x80U | ((code_point >> shift) & 0x3FU)); };
  if (code_point < 0x80U) {
    add(code_point);
  } else if (code_point < 0x800U) {
    add(0xC0U | (code_point >> 6U));
    tail(0);
  } else if (code_point < 0x10000U) {
    add(0xE0U | (code_point >> 12U));
    tail(6);
    tail(0);
  } else {
    add(0xF0U | (code_point >> 18U));
    tail(12);
    tail(6);
    tail(0);
  }
}

std::vector<std::size_t> code_point_offsets(std::string_view text) {
  std::vector<std::size_t> offsets;
  offsets.reserve(text.size() + 1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!continues(text[i])) offsets.push_back(i);
  }
  offsets.push_back(text.size());
  return offsets;
}

std::vector<std::string_view> characters(std::string_view text) {
  std::vector<std::string_view> found;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t begin = i;
    next_code_point(text, i);
    found.push_back(text.substr(begin, i - begin));
  }
  return found;
}

bool is_space(char32_t c) {
  return (c >= 0x2000 && c <= 0x200A) ||
         std::find(kSpaces.begin(), kSpaces.end(), c) != kSpaces.end();
}

std::string_view strip(std::string_view text, Ends ends, std::optional<std::string_view> set) {
  std::vector<char32_t> members;
  if (set) {
    for (std::size_t i = 0; i < set->size();) members.push_back(next_code_point(*set, i));
    std::sort(members.begin(), members.end());
  }
  const auto goes = [&](char32_t c) {
    return set ? std::binary_search(members.begin(), members.end(), c) : is_space(c);
  };
  while (ends != Ends::kRight && !text.empty()) {
    std::size_t behind = 0;
    if (!goes(next_code_point(text, behind))) break;
    text.remove_prefix(behind);
  }
  while (ends != Ends::kLeft && !text.empty()) {
    const std::size_t last = previous(text, text.size());
    std::size_t i = last;
    if (!goes(next_code_point(text, i))) break;
    text = text.substr(0, last);
  }
  return text;
}

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t end = i;
    const char32_t c = next_code_point(text, i);
    if (!ends_line(c)) continue;
    if (c == '\r' && i < text.size() && text[i] == '\n') ++i;
    lines.push_back(text.substr(begin, end - begin));
    begin = i;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::vector<std::string_view> split_at_space(std::string_view text, std::int64_t max_splits) {
  std::vector<std::string_view> parts;
  text = strip(text, Ends::kLeft);
  while (!text.empty()) {
    if (max_splits >= 0 && parts.size() == static_cast<std::size_t>(max_splits)) {
      parts.push_back(text);
      break;
    }
    std::size_t end = 0;
    for (std::size_t i = 0; i < text.size(); end = i) {
      if (is_space(next_code_point(text, i))) break;
    }
    parts.push_back(text.substr(0, end));
    text = strip(text.substr(end), Ends::kLeft);
  }
  return parts;
}

std::vector<std::string_view> split_at(std::string_view text, std::string_view separator,
                                       std::int64_t max_splits) {
  std::vector<std::string_view> parts;
  while (max_splits < 0 || parts.size() < static_cast<std::size_t>(max_splits)) {
    const std::size_t at = text.find(separator);
    if (at == std::string_view::npos) break;
    parts.push_back(text.substr(0, at));
    text.remove_prefix(at + separator.size());
  }
  parts.push_back(text);
  return parts;
}

}  // namespace ingot::inference::jinja
