#include <algorithm>
#include <array>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/commands/commands.h"
#include "cli/terminal/output_guard.h"
#include "library/options/flag_table.h"

namespace ingot::cli {
namespace {

// Within single quotes of a POSIX shell.
std::string shell_quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

// The option, and the one that denies it.
std::vector<std::string> option_names(const Flag& flag) {
  std::vector<std::string> names = {flag.name};
  if (!flag.rule.letter.empty()) names.push_back(flag.rule.letter);
  if (std::holds_alternative<std::optional<bool>*>(flag.target))
    names.push_back("--no-" + flag.name.substr(2));
  return names;
}

std::vector<const Flag*> options_of(const CommandWords& command) {
  std::vector<const Flag*> flags;
  for (const FlagTable::Row& row : command.table->rows)
    if (!is_positional(row.flag)) flags.push_back(&row.flag);
  return flags;
}

std::vector<const Flag*> positionals_of(const CommandWords& command) {
  std::vector<const Flag*> flags;
  for (const FlagTable::Row& row : command.table->rows)
    if (is_positional(row.flag)) flags.push_back(&row.flag);
  return flags;
}

// The bash action that completes a value.
std::string bash_action(const Flag& flag) {
  if (!offered_values(flag).empty())
    return fmt::format("_ingot_{} {}", flag.rule.words_begin ? "beginnings" : "words",
                       shell_quoted(fmt::format("{}", fmt::join(offered_values(flag), " "))));
  switch (flag.rule.kind) {
    case ValueKind::kFolder:
    case ValueKind::kCheckpoint:
      return "_ingot_paths -d";
    case ValueKind::kFile:
    case ValueKind::kPath:
    case ValueKind::kCheckpointOrFile:
      return "_ingot_paths -f";
    default:
      return ":";
  }
}

std::string bash_command(const CommandWords& command) {
  std::string values, names = "--help";
  for (const Flag* flag : options_of(command)) {
    for (const std::string& name : option_names(*flag)) names += " " + name;
    if (takes_value(*flag))
      values += fmt::format("        {}) {}; return ;;\n", flag->name, bash_action(*flag));
  }
  std::string places;
  std::size_t place = 0;
  for (const Flag* flag : positionals_of(command))
    places += fmt::format("        {}) {} ;;\n", place++, bash_action(*flag));
  return fmt::format(
      "    {})\n"
      "      case $before in\n{}      esac\n"
      "      if [[ $current == -* ]]; then _ingot_words {}; return; fi\n"
      "      case $place in\n{}      esac ;;\n",
      command.name, values, shell_quoted(names), places);
}

constexpr std::string_view kBashStart =
    R"sh(# bash completion of ingot, made by: ingot completions bash

# The command line up to the cursor: bash has cut it at each = and : too, and replaces only what is
# behind the last of them. $current is what stands there, $kept the beginning of it that stays.
_ingot_line() {
  local word joins=
  line=()
  for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
    if [[ ${#line[@]} -gt 0 && ( $joins || $word =~ ^[=:]+$ ) ]]; then
      line[-1]+=$word
    else
      line+=("$word")
    fi
    [[ $word =~ ^[=:]+$ ]] && joins=yes || joins=
  done
  current=${line[-1]#[\"\']}
  before=${line[-2]-}
  local last=${COMP_WORDS[COMP_CWORD]#[\"\']}
  [[ $last =~ ^[=:]+$ ]] && last=
  kept=${current%"$last"}
  option=
  if [[ $current == --*=* ]]; then
    before=${current%%=*}
    option=$before=
    current=${current#*=}
  fi
}

_ingot_offer() {
  local i
  for i in "${!COMPREPLY[@]}"; do
    COMPREPLY[i]=$option${COMPREPLY[i]}
    COMPREPLY[i]=${COMPREPLY[i]#"$kept"}
  done
}

# Words that begin with what stands there; of a list with commas, with its last word.
_ingot_words() {
  local list=${current%"${current##*,}"}
  mapfile -t COMPREPLY < <(compgen -P "$list" -W "$1" -- "${current##*,}")
  _ingot_offer
}

_ingot_beginnings() {
  compopt -o nospace 2>/dev/null
  _ingot_words "$1"
}

_ingot_paths() {
  compopt -o filenames 2>/dev/null
  mapfile -t COMPREPLY < <(compgen "$1" -- "$current")
  _ingot_offer
}

_ingot() {
  local -a line=()
  local current before kept option command= place=0 i
  COMPREPLY=()
  # A word whose quotes are closed is whole.
  [[ ${COMP_WORDS[COMP_CWORD]} == [\"]*[\"] || ${COMP_WORDS[COMP_CWORD]} == [\']*[\'] ]] && return
  _ingot_line
  for ((i = 1; i < ${#line[@]} - 1; i++)); do
    [[ ${line[i]} == -* ]] && continue
    if [[ -z $command ]]; then
      command=${line[i]}
    elif ! _ingot_takes_value "$command" "${line[i-1]}"; then
      place=$((place + 1))
    fi
  done
  case $command in
)sh";

std::string bash_completions(std::span<const CommandWords> commands) {
  std::string cases, names = "--help --version", taking;
  for (const CommandWords& command : commands) {
    cases += bash_command(command);
    names += " " + command.name;
    for (const Flag* flag : options_of(command))
      if (takes_value(*flag))
        taking += fmt::format("    '{} {}') return 0 ;;\n", command.name, flag->name);
  }
  return fmt::format(
      "{}    '') _ingot_words {} ;;\n{}  esac\n}}\n\n"
      "_ingot_takes_value() {{\n  case \"$1 $2\" in\n{}  esac\n  return 1\n}}\n\n"
      "complete -F _ingot ingot\n",
      kBashStart, shell_quoted(names), cases, taking);
}

// A description within the brackets of _arguments, or before its colon.
std::string zsh_escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view("[]:\\").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_action(const Flag& flag) {
  if (!offered_values(flag).empty()) {
    const std::string words = zsh_escaped(fmt::format("{}", fmt::join(offered_values(flag), " ")));
    // Without a blank behind the word.
    return flag.rule.words_begin ? fmt::format(":value:{{compadd -S \"\" - {}}}", words)
                                 : fmt::format(":value:({})", words);
  }
  switch (flag.rule.kind) {
    case ValueKind::kFolder:
    case ValueKind::kCheckpoint:
      return ":folder:_files -/";
    case ValueKind::kFile:
    case ValueKind::kPath:
    case ValueKind::kCheckpointOrFile:
      return ":file:_files";
    default:
      return ":value: ";
  }
}

std::string zsh_completions(std::span<const CommandWords> commands) {
  std::string names, cases;
  for (const CommandWords& command : commands) {
    names +=
        fmt::format("    {}\n", shell_quoted(command.name + ":" + zsh_escaped(command.summary)));
    cases += fmt::format("    {})\n      _arguments '(- *)--help[print help]'", command.name);
    for (const Flag* flag : options_of(command)) {
      const bool repeats = std::holds_alternative<std::vector<std::string>*>(flag->target);
      for (const std::string& name : option_names(*flag)) {
        cases += " \\\n        " +
                 shell_quoted(fmt::format("{}{}{}[{}]{}", repeats ? "*" : "", name,
                                          takes_value(*flag) ? "=" : "", zsh_escaped(flag->help),
                                          takes_value(*flag) ? zsh_action(*flag) : ""));
      }
    }
    std::size_t place = 1;
    for (const Flag* flag : positionals_of(command))
      cases += " \\\n        " + shell_quoted(fmt::format("{}{}", place++, zsh_action(*flag)));
    cases += " ;;\n";
  }
  return fmt::format(
      "#compdef ingot\n# zsh completion of ingot, made by: ingot completions zsh\n\n"
      "_ingot() {{\n  local -a commands\n  commands=(\n{}  )\n"
      "  if (( CURRENT == 2 )); then\n    _describe command commands\n    return\n  fi\n"
      "  local command=$words[2]\n  shift words\n  (( CURRENT-- ))\n"
      "  case $command in\n{}  esac\n}}\n\n"
      "if [[ $funcstack[1] == _ingot ]]; then\n  _ingot \"$@\"\nelse\n  compdef _ingot ingot\nfi\n",
      names, cases);
}

// Within single quotes of fish, which knows two escapes.
std::string fish_quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out + "'";
}

std::string fish_action(const Flag& flag) {
  if (!offered_values(flag).empty())
    return fmt::format(" -x -a {}",
                       fish_quoted(fmt::format("{}", fmt::join(offered_values(flag), " "))));
  switch (flag.rule.kind) {
    case ValueKind::kFolder:
    case ValueKind::kCheckpoint:
      return " -x -a '(__fish_complete_directories)'";
    case ValueKind::kFile:
    case ValueKind::kPath:
    case ValueKind::kCheckpointOrFile:
      return " -r -F";
    default:
      return " -x";
  }
}

std::string fish_completions(std::span<const CommandWords> commands) {
  std::string text =
      "# fish completion of ingot, made by: ingot completions fish\n"
      "complete -c ingot -f\n";
  for (const CommandWords& command : commands) {
    text += fmt::format("complete -c ingot -n __fish_use_subcommand -a {} -d {}\n", command.name,
                        fish_quoted(command.summary));
    const std::string start =
        fmt::format("complete -c ingot -n '__fish_seen_subcommand_from {}'", command.name);
    for (const Flag* flag : options_of(command)) {
      for (const std::string& name : option_names(*flag)) {
        const std::string word =
            name.starts_with("--") ? "-l " + name.substr(2) : "-s " + name.substr(1);
        text += fmt::format("{} {} -d {}{}\n", start, word, fish_quoted(flag->help),
                            takes_value(*flag) ? fish_action(*flag) : "");
      }
    }
    // Fish does not count places.
    for (const Flag* flag : positionals_of(command)) {
      if (!offered_values(*flag).empty()) {
        text += fmt::format("{} -a {}\n", start,
                            fish_quoted(fmt::format("{}", fmt::join(offered_values(*flag), " "))));
      } else if (flag->rule.kind != ValueKind::kText) {
        text += start + " -F\n";
      }
    }
  }
  return text;
}

// A shell, and the script that completes the words of `ingot`: commands, options, the values of
// those that have a list of them, folders and files.
struct Shell {
  std::string_view name;
  std::string (*completions)(std::span<const CommandWords> commands);
};

constexpr std::array kShells = {Shell{"bash", bash_completions}, Shell{"zsh", zsh_completions},
                                Shell{"fish", fish_completions}};

}  // namespace

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
    write_data(shell->completions(all.words()));
    return kExitDone;
  };
}

}  // namespace ingot::cli
