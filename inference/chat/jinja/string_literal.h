#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ingot::inference::jinja {

/// What stands between the quotes of a string, with Python's escapes resolved: \n, \t, \\, \', \",
/// \a, \b, \f, \r, \v, octal, \xHH, \uHHHH, \UHHHHHHHH, and a backslash before a line end; any
/// other backslash stays. Throws kCorrupt with `line` for a broken escape, kUnsupported for \N{...}
/// and for surrogates, which UTF-8 cannot hold.
std::string unescape_string(std::string_view text, std::uint32_t line);

}  // namespace ingot::inference::jinja
