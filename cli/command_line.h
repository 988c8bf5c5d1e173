#pragma once

#include <functional>
#include <string>

namespace ingot::cli {

/// Parses the words of a call whose first word is `command` (empty: there is none). Returns what
/// runs the command; prints what --help and --version ask for and returns null. Throws
/// kInvalidArgument for words that are not understood.
std::function<int()> parse_command_line(int argc, const char* const* argv,
                                        const std::string& command);

}  // namespace ingot::cli
