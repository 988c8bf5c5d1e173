#include "cli/manual/man_page.h"

#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace ingot::cli {
namespace {

// Text as roff takes it for itself: no line of it is a request.
std::string roff(std::string_view text) {
  std::string out;
  bool at_start = true;
  for (const char c : text) {
    if (at_start && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
    at_start = c == '\n';
  }
  return out;
}

std::string title(std::string_view name, std::string_view summary, std::string_view version) {
  return fmt::format(".TH {} 1 \"\" \"ingot {}\" \"ingot manual\"\n.SH NAME\n{} \\- {}\n",
                     roff(name), version, roff(name), roff(summary));
}

// The sections that every page ends with.
constexpr std::string_view kLastSections =
    ".SH EXIT STATUS\n"
    ".TP\n.B 0\ndone\n"
    ".TP\n.B 1\na verification below its thresholds, an engine that does not load the checkpoint, "
    "or memory that it does not fit into\n"
    ".TP\n.B 2\nanything else, such as an option or a file that cannot be used\n"
    ".TP\n.B 130, 143\nstopped by Ctrl\\-C, by SIGTERM\n"
    ".SH ENVIRONMENT\n"
    ".TP\n.B NO_COLOR\nif not empty, no colour and nothing in bold\n"
    ".TP\n.B TERM\nof \"dumb\" likewise, and no progress bar\n"
    ".SH FILES\n"
    ".TP\n.I OUT/.ingot\\-partial\nan output until it is published; \\-\\-resume continues it\n"
    ".TP\n.I OUT/ingot.json\nthe manifest: options, source, and a hash of every file\n"
    ".TP\n.I OUT/ingot.tensors.jsonl.zst\na record for each tensor, with its hash\n"
    ".TP\n.I OUT/ingot.verify.json\nthe report of a verification before publication\n";

// Lines without changes.
std::string verbatim(std::string_view text) {
  return fmt::format(".nf\n{}\n.fi\n", roff(text));
}

// The name of the value in the synopsis of an option.
std::string value_of(const Flag& flag) {
  if (!flag.rule.value_name.empty()) return flag.rule.value_name;
  const std::string_view kind = value_kind_name(flag.rule.kind);
  return kind.empty() ? "VALUE" : std::string(kind);
}

std::string option_entry(const Flag& flag) {
  const std::string& letter = flag.rule.letter;
  std::string text =
      fmt::format(".TP\n.B {}{}", letter.empty() ? "" : roff(letter) + ", ", roff(flag.name));
  if (std::holds_alternative<std::optional<bool>*>(flag.target))
    text += fmt::format(", {}", roff("--no-" + flag.name.substr(2)));
  if (!is_positional(flag) && takes_value(flag))
    text += fmt::format(" \\fI{}\\fR", roff(value_of(flag)));
  text += fmt::format("\n{}\n", roff(flag.help));
  if (!flag.rule.choices.empty())
    text +=
        fmt::format("One of {}.\n", roff(fmt::format("{}", fmt::join(flag.rule.choices, ", "))));
  return text;
}

std::string synopsis(const CommandWords& command) {
  std::string words;
  for (const FlagTable::Row& row : command.table->rows) {
    if (!is_positional(row.flag)) continue;
    const std::string word = fmt::format("\\fI{}\\fR", roff(row.flag.name));
    words += row.flag.rule.is_required ? " " + word : " [" + word + "]";
  }
  return fmt::format(".SH SYNOPSIS\n.B ingot {}\n[\\fIoptions\\fR]{}\n", roff(command.name), words);
}

}  // namespace

std::string program_man_page(const ProgramWords& program, std::span<const CommandWords> commands) {
  std::string text = title("ingot", program.summary, program.version);
  text += ".SH SYNOPSIS\n.B ingot\n\\fIcommand\\fR [\\fIoptions\\fR] ...\n.SH COMMANDS\n";
  for (const CommandWords& command : commands)
    text += fmt::format(".TP\n.BR ingot\\-{} (1)\n{}\n", command.name, roff(command.summary));
  text += ".SH EXAMPLES\n" + verbatim(program.footer);
  return text.append(kLastSections) +
         ".SH SEE ALSO\n.B ingot help\nlists pages that the program has of itself.\n";
}

std::string command_man_page(const ProgramWords& program, const CommandWords& command) {
  std::string text = title("ingot-" + command.name, command.summary, program.version);
  text += synopsis(command);
  std::string arguments;
  for (const FlagTable::Row& row : command.table->rows)
    if (is_positional(row.flag)) arguments += option_entry(row.flag);
  if (!arguments.empty()) text += ".SH ARGUMENTS\n" + arguments;
  text += ".SH OPTIONS\n.TP\n.B \\-h, \\-\\-help\nprint help and exit\n";
  for (std::size_t group = 0; group < kFlagGroups; ++group) {
    std::string entries;
    for (const FlagTable::Row& row : command.table->rows) {
      if (row.group == static_cast<FlagGroup>(group) && !is_positional(row.flag))
        entries += option_entry(row.flag);
    }
    if (entries.empty()) continue;
    const auto heading = static_cast<FlagGroup>(group);
    if (heading != FlagGroup::kCommon) text += fmt::format(".SS {}\n", heading_of(heading));
    text += entries;
  }
  if (!command.table->footer.empty()) text += ".SH EXAMPLES\n" + verbatim(command.table->footer);
  return text.append(kLastSections) + ".SH SEE ALSO\n.BR ingot (1)\n";
}

}  // namespace ingot::cli
