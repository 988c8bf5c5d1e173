#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json/json_fwd.h"

// Python's str operations. Every text here is valid UTF-8; Python counts in code points.

namespace ingot::inference {

std::size_t code_point_count(std::string_view text);

/// std::string_view::find() in linear time.
std::size_t find_text(std::string_view text, std::string_view wanted);

/// The characters one by one.
std::vector<std::string_view> characters(std::string_view text);

/// str.isspace() of one code point.
bool is_space(char32_t code_point);

/// str.isprintable() of one code point: repr() escapes the others.
bool is_printable(char32_t code_point);

/// Ends of a text that str.strip and its relatives work on.
enum class Ends : std::uint8_t { kBoth, kLeft, kRight };

/// Returns the text without the characters of `set` at the ends; strips white space if no set is
/// given.
std::string_view strip(std::string_view text, Ends ends, std::optional<std::string_view> set = {});

/// str.splitlines(): cuts at every line boundary that Python knows; none follows the last one.
std::vector<std::string_view> split_lines(std::string_view text);

/// str.split(): runs of white space separate; at most `max_splits` cuts, all when negative.
std::vector<std::string_view> split_at_space(std::string_view text, std::int64_t max_splits);

/// str.split(separator). REQUIRES: a separator that is not empty.
std::vector<std::string_view> split_at(std::string_view text, std::string_view separator,
                                       std::int64_t max_splits);

enum class Case : std::uint8_t {
  kUpper,
  kLower,
  kCapitalized,  ///< the first letter upper, the rest lower
  kTitle,        ///< str.title(): upper behind anything that is no letter
  kWords,        ///< the filter `title`: upper behind white space, hyphens and brackets
};

/// Changes the case of the letters A to Z.
std::string with_case(std::string_view text, Case wanted);

/// True if with_case changes less than Python, because a letter beyond ASCII has a case.
bool has_foreign_case(std::string_view text);

/// A double as Python's repr() writes it: the fewest digits that read back as the same number, with
/// an exponent below 1e-4 and from 1e16 on; "inf", "-inf", "nan".
std::string python_float(double value);

/// How json.dumps writes; the defaults are those of chat templates and of the V3.2 encoder.
struct PythonJsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  /// Indentation per level, with every element on its own line; nullopt: all on one line.
  std::optional<std::string> indent;
  /// Text between elements; empty: the default, ", " or, with an indent, ",".
  std::string item_separator;
  std::string key_separator = ": ";
  /// Greatest size of the text, since an indentation multiplies it; python_json throws kLimit
  /// beyond.
  std::size_t max_bytes = std::numeric_limits<std::size_t>::max();
};

/// The output of Python's json.dumps: keys in their order, "/" as it is, floats as python_float,
/// infinite ones as Infinity and NaN. Strings must be valid UTF-8.
std::string python_json(const formats::Json& value, const PythonJsonStyle& style = {});

}  // namespace ingot::inference
