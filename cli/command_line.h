#pragma once

#include <functional>
#include <string>

namespace ingot::cli {

/// Parses the words of a call whose first word is `command` (empty: there is none). Returns the
/// function that runs the command; for --help and --version prints the text and returns null.
/// Throws kInvalidArgument for words that are not understood.
std::function<int()> parse_command_line(int argc, const char* const* argv,
                                        const std::string& command);

/// The text of `ingot --version`: ingot, its libraries (versions of those loaded, where they tell
/// them), and the SIMD targets that this CPU can run. No newline at the end.
std::string versions_text();

}  // namespace ingot::cli
