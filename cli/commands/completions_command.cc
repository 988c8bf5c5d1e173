#include <algorithm>
#include <iostream>
#include <memory>

#include "cli/commands/commands.h"
#include "cli/manual/completions.h"
#include "library/options/flag_table.h"

namespace ingot::cli {

std::function<int()> declare_completions(FlagTable& table) {
  const auto name = std::make_shared<std::string>();
  table.add(FlagGroup::kCommon,
            {{"shell",
              name.get(),
              "the shell",
              {.is_required = true, .choices = words_of(kShells, &Shell::name)}}});
  table.footer =
      "Examples:\n"
      "  source <(ingot completions bash)                              for this shell\n"
      "  ingot completions bash > ~/.local/share/bash-completion/completions/ingot\n"
      "  ingot completions zsh > ~/.zfunc/_ingot                       a folder of $fpath\n"
      "  ingot completions fish > ~/.config/fish/completions/ingot.fish";
  return [name] {
    const auto shell = std::find_if(kShells.begin(), kShells.end(),
                                    [&](const Shell& row) { return row.name == *name; });
    const AllCommands all;
    std::cout << shell->completions(all.words());
    return kExitDone;
  };
}

}  // namespace ingot::cli
