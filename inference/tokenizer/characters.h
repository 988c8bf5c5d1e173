#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace ingot::inference {

/// One code point of a text and the bytes it takes there.
struct CodePoint {
  char32_t value = 0;
  std::size_t n_bytes = 0;
};

/// The code point that starts at `position`. REQUIRES: valid UTF-8, position inside the text.
CodePoint code_point_at(std::string_view text, std::size_t position);

/// The code point that ends before `position`. REQUIRES: valid UTF-8, position > 0.
CodePoint code_point_before(std::string_view text, std::size_t position);

/// Appends the UTF-8 of a code point up to U+10FFFF.
void append_utf8(std::string& text, char32_t code_point);

/// Unicode White_Space, the meaning of \s.
bool is_white_space(char32_t code_point);

/// The text without white space at its left end, its right end or both.
std::string_view without_white_space(std::string_view text, bool left, bool right);

/// The text with `to` for every `from`, left to right. REQUIRES: `from` is not empty.
std::string replaced(std::string_view text, std::string_view from, std::string_view to);

/// Unicode's word characters (UTS 18, annex C): Alphabetic, Mark, Decimal_Number,
/// Connector_Punctuation, Join_Control. They decide whether a `single_word` token is a word by
/// itself.
bool is_word_character(char32_t code_point);

/// General category Mark (Mn, Mc, Me).
bool is_mark(char32_t code_point);

/// The byte at which the first sequence starts that is not UTF-8; nullopt for valid text. As
/// everywhere, overlong forms, surrogates and code points beyond U+10FFFF are invalid.
std::optional<std::size_t> find_invalid_utf8(std::string_view text);

/// Turns bytes that come in pieces into valid UTF-8: a sequence is held back until it is complete,
/// and every maximal part of an invalid one becomes one U+FFFD.
class LossyUtf8 {
 public:
  /// Appends to `out` all that `bytes` completes.
  void push(std::string_view bytes, std::string& out);
  /// An open character becomes one U+FFFD; the next push starts again.
  void finish(std::string& out);

 private:
  std::string open_;
};

/// Appends one printable character per byte, after the map of GPT-2's byte-level BPE: bytes
/// 0x21-0x7E, 0xA1-0xAC and 0xAE-0xFF become the code point of the same value, the other 68, in
/// ascending order, U+0100, U+0101, ... (a space is U+0120).
void append_byte_characters(std::string_view bytes, std::string& out);

/// Appends the bytes of a token. A token with any character outside the map (an added token, as a
/// rule) is its own UTF-8. REQUIRES: valid UTF-8.
void append_token_bytes(std::string_view token, std::string& out);

}  // namespace ingot::inference
