#pragma once

#include <string>
#include <string_view>

namespace ingot {

/// True if a text is valid UTF-8, as every JSON string must be.
bool is_utf8(std::string_view text);

/// Text from a stranger as it may be shown on a terminal: control characters, bytes that are no
/// UTF-8 and characters that turn the direction of text become `\n`, `\t`, `\x1b`, `\u009b`,
/// `\u202e`. All else stays, so that escaping a second time has no effect.
std::string printable(std::string_view text);

/// Returns printable() of the text, but keeps line breaks before two spaces, as lists have them.
std::string printable_lines(std::string_view text);

/// Returns printable() of the text, but keeps every line break and tab: for a program's whole
/// output. JSON stays the same JSON.
std::string printable_page(std::string_view text);

/// The text as a document may hold it, lines and tabs included: other control characters, those
/// that turn the direction of text, and bytes that are no UTF-8 become U+FFFD. Generated text may
/// end inside a character.
std::string valid_text(std::string_view text);

/// Any bytes as a document may hold them: those that are no UTF-8, and `%`, become `%XX`.
std::string escaped_bytes(std::string_view bytes);
/// The bytes that were escaped so.
std::string unescaped_bytes(std::string_view text);

}  // namespace ingot
