#include "inference/tokenizer/byte_level.h"

#include <array>
#include <cstddef>

#include "inference/tokenizer/characters.h"

namespace ingot::inference {
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
