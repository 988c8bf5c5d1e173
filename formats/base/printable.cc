#include "formats/base/printable.h"

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>

#include <fmt/format.h>

namespace ingot {
namespace {

constexpr std::string_view kListBreak = "\n  ";

struct CodePoint {
  std::uint32_t value = 0;
  std::size_t n_bytes = 0;  ///< 0: the bytes are no UTF-8
};

struct Utf8Length {
  std::uint8_t mask, lead;  ///< first byte & mask == lead
  std::uint32_t smallest;   ///< smallest code point of this length; smaller ones are overlong
};
constexpr std::array kLengths = {Utf8Length{0x80, 0x00, 0}, Utf8Length{0xE0, 0xC0, 0x80},
                                 Utf8Length{0xF0, 0xE0, 0x800}, Utf8Length{0xF8, 0xF0, 0x10000}};

CodePoint first_code_point(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  for (std::size_t extra = 0; extra < kLengths.size() && extra < text.size(); ++extra) {
    const Utf8Length& row = kLengths[extra];
    if ((byte(0) & row.mask) != row.lead) continue;
    std::uint32_t value = byte(0) & static_cast<std::uint8_t>(~row.mask);
    for (std::size_t i = 1; i <= extra; ++i) {
      if ((byte(i) & 0xC0U) != 0x80U) return {};
      value = value << 6U | (byte(i) & 0x3FU);
    }
    const bool is_surrogate = value >= 0xD800 && value <= 0xDFFF;
    if (value < row.smallest || value > 0x10FFFF || is_surrogate) return {};
    return {.value = value, .n_bytes = extra + 1};
  }
  return {};
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const CodePoint point = first_code_point(text);
    if (point.n_bytes == 0) return false;
    text.remove_prefix(point.n_bytes);
  }
  return true;
}

namespace {

// U+FFFE and U+FFFF are no characters, and refused by other readers of texts.
bool is_control(std::uint32_t value) {
  return value < 0x20 || (value >= 0x7F && value <= 0x9F) || value == 0xFFFE || value == 0xFFFF;
}

// Line and paragraph separators, and characters that turn the direction of the text after them.
bool moves_text(std::uint32_t value) {
  return value == 0x061C || value == 0x200E || value == 0x200F ||
         (value >= 0x2028 && value <= 0x202E) || (value >= 0x2066 && value <= 0x2069);
}

void append_escaped(std::string_view bytes, std::string& out) {
  for (const char c : bytes) out += fmt::format("\\x{:02x}", static_cast<std::uint8_t>(c));
}

/// The white space that stays as it is.
enum class Keeps : std::uint8_t { kNone, kLists, kLines };

std::string escaped(std::string_view text, Keeps keeps) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    if (keeps == Keeps::kLists && text.starts_with(kListBreak)) {
      out += kListBreak;
      text.remove_prefix(kListBreak.size());
      continue;
    }
    const CodePoint point = first_code_point(text);
    const std::string_view bytes = text.substr(0, point.n_bytes == 0 ? 1 : point.n_bytes);
    if (point.n_bytes == 0) {
      append_escaped(bytes, out);
    } else if (keeps == Keeps::kLines && (point.value == '\n' || point.value == '\t')) {
      out += bytes;
    } else if (point.value == '\n') {
      out += "\\n";
    } else if (point.value == '\t') {
      out += "\\t";
    } else if (point.value == '\r') {
      out += "\\r";
    } else if (point.value < 0x20) {
      append_escaped(bytes, out);
    } else if (is_control(point.value) || moves_text(point.value)) {
      // Spelled as JSON spells them, since the JSON writer leaves these characters as they are.
      out += fmt::format("\\u{:04x}", point.value);
    } else {
      out += bytes;
    }
    text.remove_prefix(bytes.size());
  }
  return out;
}

}  // namespace

std::string printable(std::string_view text) {
  return escaped(text, Keeps::kNone);
}

std::string printable_lines(std::string_view text) {
  return escaped(text, Keeps::kLists);
}

std::string printable_page(std::string_view text) {
  return escaped(text, Keeps::kLines);
}

std::string valid_text(std::string_view text) {
  constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const CodePoint point = first_code_point(text);
    const std::string_view bytes = text.substr(0, point.n_bytes == 0 ? 1 : point.n_bytes);
    const bool is_kept = point.n_bytes > 0 && !moves_text(point.value) &&
                         (!is_control(point.value) || point.value == '\t' || point.value == '\n');
    out += is_kept ? bytes : kReplacement;
    text.remove_prefix(bytes.size());
  }
  return out;
}

std::string escaped_bytes(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const std::size_t n = first_code_point(bytes).n_bytes;
    if (n == 0 || bytes[0] == '%') {
      text += fmt::format("%{:02X}", static_cast<std::uint8_t>(bytes[0]));
      bytes.remove_prefix(1);
    } else {
      text += bytes.substr(0, n);
      bytes.remove_prefix(n);
    }
  }
  return text;
}

std::string unescaped_bytes(std::string_view text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::uint8_t byte = 0;
    const char* const digits = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      bytes += static_cast<char>(byte);
      i += 2;
    } else {
      bytes += text[i];
    }
  }
  return bytes;
}

}  // namespace ingot
