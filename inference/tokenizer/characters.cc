#include "inference/tokenizer/characters.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include <utf8proc.h>

#include "formats/base/words.h"

namespace ingot::inference {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

utf8proc_category_t category_of(char32_t code_point) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
}

// Alphabetic by Other_Alphabetic and neither letter nor mark: circled, squared and other enclosed
// Latin letters, the whole of it in Unicode 15.
bool is_enclosed_letter(char32_t c) {
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
         (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

}  // namespace

CodePoint code_point_at(std::string_view text, std::size_t position) {
  const auto byte = [&](std::size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[position + i]));
  };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {((lead & 0x1FU) << 6) | (byte(1) & 0x3FU), 2};
  if (lead < 0xF0)
    return {((lead & 0x0FU) << 12) | ((byte(1) & 0x3FU) << 6) | (byte(2) & 0x3FU), 3};
  return {((lead & 0x07U) << 18) | ((byte(1) & 0x3FU) << 12) | ((byte(2) & 0x3FU) << 6) |
              (byte(3) & 0x3FU),
          4};
}

CodePoint code_point_before(std::string_view text, std::size_t position) {
  do --position;
  while (continues_character(text[position]));
  return code_point_at(text, position);
}

void append_utf8(std::string& text, char32_t code_point) {
  std::array<utf8proc_uint8_t, 4> bytes{};
  const auto n = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), bytes.data());
  text.append(reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(n));
}

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

std::string_view without_white_space(std::string_view text, bool left, bool right) {
  while (left && !text.empty() && is_white_space(code_point_at(text, 0).value)) {
    text.remove_prefix(code_point_at(text, 0).n_bytes);
  }
  while (right && !text.empty() && is_white_space(code_point_before(text, text.size()).value)) {
    text.remove_suffix(code_point_before(text, text.size()).n_bytes);
  }
  return text;
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  for (auto at = text.find(from); at != std::string_view::npos; at = text.find(from)) {
    result.append(text, 0, at).append(to);
    text.remove_prefix(at + from.size());
  }
  return result.append(text);
}

// The values of utf8proc_category_t are in the order of the Unicode standard.

bool is_mark(char32_t code_point) {
  const auto category = category_of(code_point);
  return category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME;
}

bool is_word_character(char32_t code_point) {
  const auto category = category_of(code_point);
  // Letters, marks, digits and numbers that are letters.
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) ||
         category == UTF8PROC_CATEGORY_PC || code_point == 0x200C || code_point == 0x200D ||
         is_enclosed_letter(code_point);
}

namespace {

/// The bytes at the start of a text that can belong to one code point, and how many it would have:
/// 0 where none starts. After table 3-7 of the Unicode standard.
struct Utf8Sequence {
  std::size_t n_bytes = 1, length = 0;
  [[nodiscard]] bool is_whole() const { return n_bytes == length; }
};

Utf8Sequence first_sequence(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {.n_bytes = 1, .length = 1};
  if (lead < 0xC2 || lead > 0xF4) return {};
  Utf8Sequence first{.n_bytes = 1, .length = lead < 0xE0 ? 2U : lead < 0xF0 ? 3U : 4U};
  // The second byte tells shorter forms (E0, F0), surrogates (ED) and code points beyond U+10FFFF
  // (F4).
  unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (; first.n_bytes < std::min(first.length, text.size()); ++first.n_bytes) {
    if (byte(first.n_bytes) < low || byte(first.n_bytes) > high) break;
    low = 0x80;
    high = 0xBF;
  }
  return first;
}

}  // namespace

std::optional<std::size_t> find_invalid_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Sequence first = first_sequence(text.substr(i));
    if (!first.is_whole()) return i;
    i += first.n_bytes;
  }
  return std::nullopt;
}

void LossyUtf8::push(std::string_view bytes, std::string& out) {
  open_ += bytes;
  std::string_view rest = open_;
  while (!rest.empty()) {
    const Utf8Sequence first = first_sequence(rest);
    if (first.n_bytes < first.length && first.n_bytes == rest.size()) break;
    out += first.is_whole() ? rest.substr(0, first.n_bytes) : kReplacement;
    rest.remove_prefix(first.n_bytes);
  }
  open_.erase(0, open_.size() - rest.size());
}

void LossyUtf8::finish(std::string& out) {
  if (!open_.empty()) out += kReplacement;
  open_.clear();
}

namespace {

constexpr char32_t kFirstMoved = 0x100;
constexpr std::size_t kNumMoved = 68;
constexpr std::int16_t kNoByte = -1;

constexpr bool keeps_its_value(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr auto kCharacters = [] {
  std::array<char32_t, 256> characters{};
  char32_t next = kFirstMoved;
  for (unsigned byte = 0; byte < 256; ++byte)
    characters[byte] = keeps_its_value(byte) ? byte : next++;
  return characters;
}();

constexpr auto kBytes = [] {
  std::array<std::int16_t, kFirstMoved + kNumMoved> bytes{};
  for (auto& byte : bytes) byte = kNoByte;
  for (std::size_t byte = 0; byte < 256; ++byte)
    bytes[kCharacters[byte]] = static_cast<std::int16_t>(byte);
  return bytes;
}();

static_assert(kCharacters[' '] == 0x120 && kCharacters[0xAD] == kFirstMoved + kNumMoved - 1);

}  // namespace

void append_byte_characters(std::string_view bytes, std::string& out) {
  for (const char byte : bytes) append_utf8(out, kCharacters[static_cast<unsigned char>(byte)]);
}

void append_token_bytes(std::string_view token, std::string& out) {
  const std::size_t before = out.size();
  for (std::size_t i = 0; i < token.size();) {
    const CodePoint character = code_point_at(token, i);
    const std::int16_t byte = character.value < kBytes.size() ? kBytes[character.value] : kNoByte;
    if (byte == kNoByte) {
      out.resize(before);
      out += token;
      return;
    }
    out += static_cast<char>(byte);
    i += character.n_bytes;
  }
}

}  // namespace ingot::inference
