#pragma once

#include <cstdint>
#include <string>

namespace ingot {

/// How numbers are spelled for people, in every command.

/// `12,345,678`.
std::string count_text(std::uint64_t value);
/// Decimal units, three significant digits: `689 GB`.
std::string bytes_text(std::uint64_t n_bytes);
/// `1h 02m`, `3m 05s`, `4.2 s`.
std::string seconds_text(double seconds);
/// Six digits after the point, nine very near 1, and "1" for 1 itself.
std::string cosine_text(double value);
/// Three significant digits, without trailing zeros; from a thousand on a whole number.
std::string short_text(double value);
/// Six significant digits, without trailing zeros; from a million on a whole number.
std::string exact_text(double value);
/// Two digits after the point; "exact" for infinity.
std::string decibel_text(double value);
/// `0.123%`; "0" for none, so that few never look like none.
std::string share_text(std::uint64_t part, std::uint64_t whole);
/// `98.76%` of a part of 1.
std::string percent_text(double part);

}  // namespace ingot
