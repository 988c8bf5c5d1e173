#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "library/options/flag_table.h"

namespace ingot::cli {

/// A shell, and the script that completes the words of `ingot`: commands, options, the values of
/// those that have a list of them, folders and files.
struct Shell {
  std::string_view name;
  std::string (*completions)(std::span<const CommandWords> commands);
};

std::string bash_completions(std::span<const CommandWords> commands);
std::string zsh_completions(std::span<const CommandWords> commands);
std::string fish_completions(std::span<const CommandWords> commands);

inline constexpr std::array kShells = {Shell{"bash", bash_completions},
                                       Shell{"zsh", zsh_completions},
                                       Shell{"fish", fish_completions}};

}  // namespace ingot::cli
