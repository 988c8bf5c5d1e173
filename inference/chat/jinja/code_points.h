#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ingot::inference::jinja {

// Strings of a template are valid UTF-8; Python counts in code points. Every `text` here is valid.

std::size_t code_point_count(std::string_view text);

/// The code point that starts at byte `i`, which is moved behind it.
char32_t next_code_point(std::string_view text, std::size_t& i);

/// Appends a code point that is no surrogate and at most 10FFFF.
void append_code_point(std::string& text, char32_t code_point);

/// Byte offset of each code point, and the size of the text at the end.
std::vector<std::size_t> code_point_offsets(std::string_view text);

/// The characters one by one.
std::vector<std::string_view> characters(std::string_view text);

/// What Python's str.isspace and \s take for white space.
bool is_space(char32_t code_point);

/// Which ends str.strip and its relatives work on.
enum class Ends : std::uint8_t { kBoth, kLeft, kRight };

/// Without the characters of `set` at the ends; without one, white space.
std::string_view strip(std::string_view text, Ends ends, std::optional<std::string_view> set = {});

/// str.splitlines(): at every line boundary that Python knows; none after the last one.
std::vector<std::string_view> split_lines(std::string_view text);

/// str.split(): runs of white space separate; at most `max_splits` cuts, all when negative.
std::vector<std::string_view> split_at_space(std::string_view text, std::int64_t max_splits);

/// str.split(separator) with a separator that is not empty.
std::vector<std::string_view> split_at(std::string_view text, std::string_view separator,
                                       std::int64_t max_splits);

}  // namespace ingot::inference::jinja
