#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "check/rules/loader_rules.h"
#include "cli/commands/commands.h"
#include "cli/manual/topics.h"
#include "cli/terminal/pager.h"
#include "cli/terminal/terminal.h"
#include "convert/output/version.h"
#include "formats/base/error.h"
#include "formats/base/printable.h"
#include "formats/base/words.h"
#include "formats/text/spelling.h"
#include "library/options/flag_table.h"
#include "report/report_file.h"
#include "report/table_text.h"

namespace ingot::cli {
namespace {

// Longer lines are hard to read.
constexpr int kMostColumns = 120;

// A page that is called as a command is reached by its file's name.
std::string topic_word(const Topic& topic) {
  const bool is_command = find_command(topic.name) != nullptr;
  return std::string(topic.name) + (is_command ? ".md" : "");
}

std::size_t page_width() {
  return static_cast<std::size_t>(std::min(terminal_width(), kMostColumns));
}

std::string overview() {
  // Columns of the longest name, and of the gap before its summary.
  constexpr std::size_t kNameColumns = 19;
  std::string text;
  const auto line = [&](std::string_view name, std::string_view summary) {
    const auto lines =
        filled_lines(summary, std::max(page_width(), 2 * kNameColumns) - kNameColumns);
    text += fmt::format("  {:<{}}{}\n", name, kNameColumns - 2,
                        fmt::join(lines, fmt::format("\n{:<{}}", "", kNameColumns)));
  };
  text += "Commands (ingot help COMMAND)\n";
  for (const Command& command : commands()) line(command.name, command.summary);
  std::string_view group;
  for (const Topic& topic : topics()) {
    if (topic.group != group) text += fmt::format("\n{} (ingot help PAGE)\n", topic.group);
    group = topic.group;
    line(topic_word(topic), topic.title());
  }
  return text;
}

Error no_topic(std::string_view word) {
  std::vector<std::string_view> known;
  for (const Command& command : commands()) known.push_back(command.name);
  for (const Topic& topic : topics()) known.push_back(topic.name);
  for (const check::LoaderRule& rule : check::loader_rules()) known.push_back(rule.name);
  return Error(ErrorCode::kInvalidArgument,
               "there is no command, no page and no rule '{}' (ingot help lists them){}",
               printable(word), did_you_mean(word, known));
}

// A rule of `check`.
std::string rule_text(const check::LoaderRule& rule) {
  const Emphasis bold = emphasis(STDOUT_FILENO);
  std::string text = fmt::format("{}{}{}\n", bold.on, rule.name, bold.off);
  const auto row = [&](std::string_view what, std::string_view fact) {
    const auto lines = filled_lines(fact, page_width() - 14);
    text += fmt::format("  {:<10}  {}\n", what, fmt::join(lines, fmt::format("\n{:14}", "")));
  };
  row("holds if", rule.rule);
  row("severity", check::severity_name(rule.severity));
  row("dialect", rule.dialect.empty() ? "any" : rule.dialect);
  row("loaders", rule.loaders);
  row("more", "ingot check DIR names the tensors; ingot help rules; ingot list rules");
  return text;
}

// Texts of the program's page other than its commands.
struct ProgramWords {
  std::string_view summary, footer, version;
};

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

// The manual page ingot(1), in roff.
std::string program_man_page(const ProgramWords& program, std::span<const CommandWords> commands) {
  std::string text = title("ingot", program.summary, program.version);
  text += ".SH SYNOPSIS\n.B ingot\n\\fIcommand\\fR [\\fIoptions\\fR] ...\n.SH COMMANDS\n";
  for (const CommandWords& command : commands)
    text += fmt::format(".TP\n.BR ingot\\-{} (1)\n{}\n", command.name, roff(command.summary));
  text += ".SH EXAMPLES\n" + verbatim(program.footer);
  return text.append(kLastSections) +
         ".SH SEE ALSO\n.B ingot help\nlists pages that the program has of itself.\n";
}

// The manual page ingot-COMMAND(1).
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

void write_man_pages(const std::filesystem::path& folder) {
  const AllCommands all;
  const ProgramWords program{
      .summary = kProgramSummary, .footer = kProgramFooter, .version = convert::kVersion};
  std::filesystem::create_directories(folder);
  std::map<std::filesystem::path, std::string> pages;
  pages.emplace(folder / "ingot.1", program_man_page(program, all.words()));
  for (const CommandWords& command : all.words())
    pages.emplace(folder / ("ingot-" + command.name + ".1"), command_man_page(program, command));
  for (const auto& [file, page] : pages) require_report_place(file, ReportForm::kManPage);
  for (const auto& [file, page] : pages) {
    write_report_file(file, page, ReportForm::kManPage);
    std::cout << file.string() << "\n";
  }
}

struct HelpFlags {
  std::string topic;
  std::filesystem::path man;
};

int run_help(const HelpFlags& flags) {
  if (!flags.man.empty()) {
    write_man_pages(flags.man);
    return kExitDone;
  }
  if (flags.topic.empty()) {
    std::cout << overview();
    return kExitDone;
  }
  const auto rules = check::loader_rules();
  const auto rule = std::ranges::find(rules, lower_case(flags.topic), &check::LoaderRule::name);
  const Topic* topic = find_topic(flags.topic);
  if (topic != nullptr) {
    show_page(topic_text(*topic, page_width(), emphasis(STDOUT_FILENO)));
  } else if (rule != rules.end()) {
    std::cout << rule_text(*rule);
  } else {
    throw no_topic(flags.topic);
  }
  return kExitDone;
}

}  // namespace

std::string value_of(const Flag& flag) {
  if (!flag.rule.value_name.empty()) return flag.rule.value_name;
  const std::string_view kind = value_kind_name(flag.rule.kind);
  return kind.empty() ? "VALUE" : std::string(kind);
}

std::function<int()> declare_help(FlagTable& table) {
  auto flags = std::make_shared<HelpFlags>();
  std::vector<std::string> words = words_of(commands(), &Command::name);
  for (const Topic& topic : topics()) words.push_back(topic_word(topic));
  table.add(FlagGroup::kCommon,
            {{"topic",
              &flags->topic,
              "a command, whose options to show, a page, or a rule of check; without one: which "
              "there are",
              {.words = std::move(words)}},
             {"--man",
              &flags->man,
              "write the manual pages of all commands into this folder, and print their names",
              {.excludes = {"topic"}, .kind = ValueKind::kFolder}}});
  table.footer =
      "Examples:\n"
      "  ingot help\n"
      "  ingot help convert               as ingot convert --help\n"
      "  ingot help formats               in the program of PAGER, on a terminal\n"
      "  ingot help ct.ignore             a rule of ingot check\n"
      "  ingot help --man ~/.local/share/man/man1";
  return [flags] { return run_help(*flags); };
}

}  // namespace ingot::cli
