#pragma once

#include <span>
#include <string>
#include <string_view>

#include "library/options/flag_table.h"

namespace ingot::cli {

/// Texts of the program's page other than its commands.
struct ProgramWords {
  std::string_view summary, footer, version;
};

/// The manual page ingot(1), in roff.
std::string program_man_page(const ProgramWords& program, std::span<const CommandWords> commands);
/// The manual page ingot-COMMAND(1).
std::string command_man_page(const ProgramWords& program, const CommandWords& command);

}  // namespace ingot::cli
