#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "formats/json/json_fwd.h"

// Python's json module writes the numbers Infinity, -Infinity and NaN as bare words, which JSON
// does not have, and released config.json files hold them.

namespace ingot::formats {

/// parse_json, and in addition these words. After a NaN, bytes in errors are five too high.
Json parse_python_json(std::string_view text, std::string_view where);

/// Most values of a config and its like. One of AutoRound with nine words about each matrix of
/// 70,000 experts has 630,000; a tree takes up to 100 times the bytes of its text.
inline constexpr std::size_t kMaxConfigValues = std::size_t{1} << 20;

/// Most members of an object of a config: a map of the modules of such a mixture has 70,000.
inline constexpr std::size_t kMaxConfigMembers = std::size_t{1} << 17;

/// Most memory of its tree, of which there are several copies at a time; that one of AutoRound
/// takes 47 MB.
inline constexpr std::size_t kMaxConfigTreeBytes = std::size_t{56} << 20;

/// parse_python_json, and parse_json, of a config: scalars, objects and arrays are its values, and
/// more than kMaxConfigValues, kMaxConfigMembers of one object or kMaxConfigTreeBytes are kLimit.
Json parse_python_config(std::string_view text, std::string_view where);
Json parse_config(std::string_view text, std::string_view where);

/// The text with a fraction of 0 behind integers beyond 64 bits, which Python writes and parse_json
/// refuses: for files that are never written again, such as tokenizer_config.json (model_max_length
/// 10^30). Empty: the text has no number.
std::string with_rounded_integers(std::string_view text);

/// Json::dump, with these words for numbers that are not finite.
std::string dump_with_words(const Json& value, int indent, char indent_character = ' ',
                            bool escapes_non_ascii = false);

}  // namespace ingot::formats
