#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "cli/commands/commands.h"
#include "cli/manual/man_page.h"
#include "cli/manual/topics.h"
#include "cli/terminal/terminal.h"
#include "convert/output/version.h"
#include "formats/base/error.h"
#include "formats/base/printable.h"
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
  // As many as the longest name has, and the gap before its summary.
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
  text += "\nPages (ingot help PAGE)\n";
  for (const Topic& topic : topics()) line(topic_word(topic), topic.title());
  return text;
}

Error no_topic(std::string_view word) {
  std::vector<std::string_view> known;
  for (const Command& command : commands()) known.push_back(command.name);
  for (const Topic& topic : topics()) known.push_back(topic.name);
  return Error(ErrorCode::kInvalidArgument,
               "there is no command and no page '{}' (ingot help lists them){}", printable(word),
               did_you_mean(word, known));
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
  const Topic* topic = find_topic(flags.topic);
  if (topic == nullptr) throw no_topic(flags.topic);
  std::cout << topic_text(*topic, page_width(), emphasis(STDOUT_FILENO));
  return kExitDone;
}

}  // namespace

std::function<int()> declare_help(FlagTable& table) {
  auto flags = std::make_shared<HelpFlags>();
  std::vector<std::string> words = words_of(commands(), &Command::name);
  for (const Topic& topic : topics()) words.push_back(topic_word(topic));
  table.add(FlagGroup::kCommon,
            {{"topic",
              &flags->topic,
              "a command, whose options to show, or a page; without one: which there are",
              {.words = std::move(words)}},
             {"--man",
              &flags->man,
              "write the manual pages of all commands into this folder, and print their names",
              {.excludes = {"topic"}, .kind = ValueKind::kFolder}}});
  table.footer =
      "Examples:\n"
      "  ingot help\n"
      "  ingot help convert               as ingot convert --help\n"
      "  ingot help formats | less\n"
      "  ingot help --man ~/.local/share/man/man1";
  return [flags] { return run_help(*flags); };
}

}  // namespace ingot::cli
