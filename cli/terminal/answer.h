#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "library/answer.h"

namespace ingot::cli {

/// The answer of this session; main.cc prints that of the process.
Answer& answer();

/// Prints it once, where --json asks for it and no other process answers. The first of several
/// ranks does so before any of them ends: launchers drop the words of those that are left.
void print_answer();

/// A warning about a file or directory: in the document, and a note on stderr.
void warn_of(std::string_view file, const std::vector<std::string>& remarks);

}  // namespace ingot::cli
