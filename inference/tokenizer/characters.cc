#include "inference/tokenizer/characters.h"

#include <array>
#include <cstddef>

#include <utf8proc.h>

namespace ingot::inference {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

bool is_continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U;
}

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
  while (is_continuation(text[position]));
  return code_point_at(text, position);
}

void append_utf8(std::string& text, char32_t code_point) {
  const auto put = [&text](char32_t byte) { text += static_cast<char>(byte); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0U | (code_point >> 6));
    put(0x80U | (code_point & 0x3FU));
  } else if (code_point < 0x10000) {
    put(0xE0U | (code_point >> 12));
    put(0x80U | ((code_point >> 6) & 0x3FU));
    put(0x80U | (code_point & 0x3FU));
  } else {
    put(0xF0U | (code_point >> 18));
    put(0x80U | ((code_point >> 12) & 0x3FU));
    put(0x80U | ((code_point >> 6) & 0x3FU));
    put(0x80U | (code_point & 0x3FU));
  }
}

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_mark(char32_t code_point) {
  const auto category = category_of(code_point);
  return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
         category == UTF8PROC_CATEGORY_ME;
}

bool is_word_character(char32_t code_point) {
  switch (category_of(code_point)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return code_point == 0x200C || code_point == 0x200D || is_enclosed_letter(code_point);
  }
}

Utf8Scanner::Step Utf8Scanner::push(unsigned char byte) {
  if (n_missing_ > 0) {
    const bool fits = byte >= low_ && byte <= high_;
    low_ = 0x80;
    high_ = 0xBF;
    if (!fits) {
      n_missing_ = 0;
      return Step::kRestart;
    }
    return --n_missing_ == 0 ? Step::kComplete : Step::kMore;
  }
  if (byte < 0x80) return Step::kComplete;
  if (byte < 0xC2 || byte > 0xF4) return Step::kInvalid;
  n_missing_ = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
  if (byte == 0xE0) low_ = 0xA0;   // shorter forms exist
  if (byte == 0xED) high_ = 0x9F;  // surrogates
  if (byte == 0xF0) low_ = 0x90;   // shorter forms exist
  if (byte == 0xF4) high_ = 0x8F;  // beyond U+10FFFF
  return Step::kMore;
}

std::optional<std::size_t> find_invalid_utf8(std::string_view text) {
  Utf8Scanner scanner;
  std::size_t start = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!scanner.is_open()) start = i;
    const auto step = scanner.push(static_cast<unsigned char>(text[i]));
    if (step == Utf8Scanner::Step::kInvalid || step == Utf8Scanner::Step::kRestart) return start;
  }
  return scanner.is_open() ? std::optional(start) : std::nullopt;
}

void LossyUtf8::push(std::string_view bytes, std::string& out) {
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    auto step = scanner_.push(byte);
    if (step == Utf8Scanner::Step::kRestart) {
      out += kReplacement;
      open_.clear();
      step = scanner_.push(byte);
    }
    if (step == Utf8Scanner::Step::kInvalid) {
      out += kReplacement;
    } else if (step == Utf8Scanner::Step::kMore) {
      open_ += c;
    } else {
      out += open_;
      out += c;
      open_.clear();
    }
  }
}

void LossyUtf8::finish(std::string& out) {
  if (scanner_.is_open()) out += kReplacement;
  open_.clear();
  scanner_ = {};
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

std::optional<unsigned char> byte_of_character(char32_t character) {
  if (character >= kBytes.size() || kBytes[character] == kNoByte) return std::nullopt;
  return static_cast<unsigned char>(kBytes[character]);
}

void append_token_bytes(std::string_view token, std::string& out) {
  const std::size_t before = out.size();
  for (std::size_t i = 0; i < token.size();) {
    const CodePoint character = code_point_at(token, i);
    const auto byte = byte_of_character(character.value);
    if (!byte) {
      out.resize(before);
      out += token;
      return;
    }
    out += static_cast<char>(*byte);
    i += character.n_bytes;
  }
}

}  // namespace ingot::inference
