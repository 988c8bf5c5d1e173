#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ingot::inference {

/// Appends one printable character per byte, after the map of GPT-2's byte-level BPE: bytes
/// 0x21-0x7E, 0xA1-0xAC and 0xAE-0xFF become the code point of the same value, the other 68, in
/// ascending order, U+0100, U+0101, ... (a space is U+0120).
void append_byte_characters(std::string_view bytes, std::string& out);

/// The byte that a character stands for; nothing for characters outside the map.
std::optional<unsigned char> byte_of_character(char32_t character);

/// Appends the bytes that a token stands for. A token with any character outside the map (an added
/// token, as a rule) stands for its own UTF-8. REQUIRES: valid UTF-8.
void append_token_bytes(std::string_view token, std::string& out);

}  // namespace ingot::inference
