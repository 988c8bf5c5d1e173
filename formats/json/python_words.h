#pragma once

#include <string>
#include <string_view>

#include "formats/json/json_fwd.h"

// Python's json module writes the numbers Infinity, -Infinity and NaN as bare words, which JSON
// does not have, and released config.json files hold them.

namespace ingot::formats {

/// parse_json, and in addition these words. After a NaN, bytes in errors are five too high.
Json parse_python_json(std::string_view text, std::string_view where);

/// Json::dump, with these words for numbers that are not finite.
std::string dump_with_words(const Json& value, int indent, char indent_character = ' ',
                            bool escapes_non_ascii = false);

}  // namespace ingot::formats
