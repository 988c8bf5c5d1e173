#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ingot::verify {

/// How the reports for people spell numbers.

/// `12,345,678`.
std::string count_text(std::uint64_t value);
/// Six digits after the point, nine very near 1, and "1" for 1 itself.
std::string cosine_text(double value);
/// Three significant digits, without trailing zeros; from a thousand on a whole number.
std::string short_text(double value);
/// The same with six digits, and whole from a million on.
std::string exact_text(double value);
/// Two digits after the point; "exact" for infinity.
std::string decibel_text(double value);
/// `0.123%`; "0" for none, so that few never look like none.
std::string share_text(std::uint64_t part, std::uint64_t whole);
/// Decimal units, three significant digits: `689 GB`.
std::string bytes_text(std::uint64_t n_bytes);

/// The text as valid UTF-8 without control characters other than tab and line feed: what is not
/// becomes U+FFFD. Generated text may end inside a character.
std::string printable_text(std::string_view text);

}  // namespace ingot::verify
