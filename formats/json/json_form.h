#pragma once

#include <string>
#include <string_view>

#include "formats/json/json_fwd.h"

namespace ingot::formats {

/// Differences between two texts of the same JSON. The default, two-space indentation and a final
/// newline, is the form of our own files.
struct JsonForm {
  static constexpr int kOneLine = -1;
  int indent = 2;  ///< characters per level
  char indent_character = ' ';
  bool is_spaced = true;  ///< true: one line has a blank after ',' and ':'
  bool has_final_newline = true;
  bool escapes_non_ascii = false;  ///< true: escapes as hexadecimal digits, Python's default
  friend bool operator==(const JsonForm&, const JsonForm&) = default;
};

/// The form of a valid JSON text, so that a derived file is laid out as its source. Returns the
/// default where the text does not show it, or its margin is not regular.
JsonForm json_form_of(std::string_view text);

/// The text of a value in a form, keys in their order. Throws kCorrupt for strings that are not
/// UTF-8.
std::string json_text(const Json& value, const JsonForm& form);

}  // namespace ingot::formats
