// Turns tables of flags into a parser of CLI11: the only file that knows that library, whose header
// costs more time to compile than a command.
#include "cli/command_line.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <type_traits>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/commands/commands.h"
#include "cli/flags/flag_table.h"
#include "formats/base/error.h"

namespace ingot::cli {
namespace {

// By FlagGroup.
constexpr std::array kHeadings = {"Options", "Source",  "Target", "Slicing", "Comparison",
                                  "Prompts", "Answers", "Job",    "Report"};

template <typename T>
CLI::Option* add_flag_to(CLI::App& app, const Flag& flag, T* target) {
  if constexpr (std::is_same_v<T, bool>) {
    return app.add_flag(flag.name, *target, flag.help);
  } else if constexpr (std::is_same_v<T, std::optional<bool>>) {
    // Not bound to the optional: CLI11 would set it where the flag is not given.
    return app.add_flag_function(
        fmt::format("{},!--no-{}", flag.name, flag.name.substr(2)),
        [target](std::int64_t times) { *target = times > 0; }, flag.help);
  } else if constexpr (std::is_same_v<T, std::filesystem::path>) {
    return app.add_option_function<std::string>(
        flag.name, [target](const std::string& path) { *target = path; }, flag.help);
  } else {
    CLI::Option* option = app.add_option(flag.name, *target, flag.help);
    if constexpr (std::is_same_v<T, std::vector<std::string>>) option->allow_extra_args(false);
    if constexpr (std::is_same_v<T, std::string> || std::is_arithmetic_v<T>) {
      if (*target != T()) option->capture_default_str();
    }
    return option;
  }
}

void demand(const FlagRule& rule, bool is_real, CLI::Option& option) {
  option.required(rule.is_required);
  if (rule.is_positive) option.check(CLI::PositiveNumber);
  if (rule.range && is_real) option.check(CLI::Range(rule.range->least, rule.range->most));
  if (rule.range && !is_real) {
    option.check(
        CLI::Range(static_cast<int>(rule.range->least), static_cast<int>(rule.range->most)));
  }
  if (!rule.choices.empty() && rule.ignores_case)
    option.check(CLI::IsMember(rule.choices, CLI::ignore_case));
  if (!rule.choices.empty() && !rule.ignores_case) option.check(CLI::IsMember(rule.choices));
  if (!rule.value_name.empty()) option.type_name(rule.value_name);
}

void declare(const FlagTable& table, CLI::App& app) {
  // CLI11 shows headings in the order in which their first flags were added.
  std::vector<const FlagTable::Row*> rows;
  for (const FlagTable::Row& row : table.rows) rows.push_back(&row);
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto* a, const auto* b) { return a->group < b->group; });
  for (const FlagTable::Row* row : rows) {
    const Flag& flag = row->flag;
    CLI::Option* option =
        std::visit([&](auto* target) { return add_flag_to(app, flag, target); }, flag.target);
    const bool is_real = std::holds_alternative<double*>(flag.target) ||
                         std::holds_alternative<std::optional<double>*>(flag.target);
    demand(flag.rule, is_real, *option);
    option->group(kHeadings.at(static_cast<std::size_t>(row->group)));
  }
  for (const FlagTable::Row* row : rows) {
    CLI::Option* option = app.get_option(row->flag.name);
    if (!row->flag.rule.needs.empty()) option->needs(app.get_option(row->flag.rule.needs));
    for (const std::string& other : row->flag.rule.excludes)
      option->excludes(app.get_option(other));
  }
  app.footer(table.footer);
}

void note_given(const CLI::App& app, FlagTable& table) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() > 0)
      table.given.insert((option->get_positional() ? "" : "--") + option->get_single_name());
  }
}

// CLI11 begins its messages with a capital; an option or a name keeps its case.
std::string in_our_words(const CLI::ParseError& failure) {
  if (failure.get_name() == "RequiredError" &&
      std::string_view(failure.what()).find("subcommand") != std::string_view::npos) {
    return "a command is required";
  }
  std::string text = failure.what();
  if (text.size() > 1 && text[0] >= 'A' && text[0] <= 'Z' && text[1] >= 'a' && text[1] <= 'z') {
    text[0] = static_cast<char>(text[0] - 'A' + 'a');
  }
  while (!text.empty() && (text.back() == '\n' || text.back() == '.')) text.pop_back();
  return text;
}

// The words that no option took, in their order, and the option that the first may have meant.
std::string unexpected_words(const CLI::App& app) {
  std::vector<std::string> words = app.remaining();
  std::vector<std::string> names;
  const auto add_names = [&](const CLI::App& of) {
    for (const CLI::Option* option : of.get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
  };
  add_names(app);
  for (const CLI::App* sub : app.get_subcommands()) {
    const std::vector<std::string> more = sub->remaining();
    words.insert(words.end(), more.begin(), more.end());
    add_names(*sub);
  }
  std::string text = fmt::format("unexpected: {}", fmt::join(words, " "));
  const std::vector<std::string_view> choices(names.begin(), names.end());
  for (const std::string& word : words) {
    if (!word.starts_with("--")) continue;
    const std::string_view nearest = nearest_word(word.substr(0, word.find('=')), choices);
    if (!nearest.empty()) text += fmt::format("; did you mean {}?", nearest);
    break;
  }
  return text;
}

void describe_program(CLI::App& app) {
  app.name("ingot");
  app.set_help_flag("-h,--help", "print this help and exit");
  app.set_version_flag("--version", versions_text(),
                       "print the versions of ingot and of what it links, and exit");
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  ingot inspect DeepSeek-V3.2\n"
      "  ingot convert DeepSeek-V3.2 DeepSeek-V3.2-bf16 --to bf16 --dry-run\n"
      "  ingot convert DeepSeek-V3.2 DeepSeek-V3.2-bf16 --to bf16\n"
      "  ingot check DeepSeek-V3.2-bf16\n"
      "  ingot COMMAND --help                                 the options of a command, with more "
      "examples\n"
      "Exit codes: 0 done, 1 verification below its threshold, 2 anything else; stopped by Ctrl-C "
      "130, by SIGTERM 143.");
}

}  // namespace

std::function<int()> parse_command_line(int argc, const char* const* argv,
                                        const std::string& command) {
  CLI::App app(
      "ingot turns a checkpoint of a mixture-of-experts model as released into the checkpoint as "
      "deployed.");
  describe_program(app);
  std::function<int()> body;
  for (const Command& row : commands()) {
    CLI::App* sub = app.add_subcommand(std::string(row.name), std::string(row.summary));
    sub->set_help_flag("-h,--help", "print this help and exit");
    const auto table = std::make_shared<FlagTable>();
    std::function<int()> action = row.declare(*table);
    declare(*table, *sub);
    // The table lives as long as what runs: commands ask it which flags were given.
    sub->final_callback([&body, sub, table, action = std::move(action)] {
      note_given(*sub, *table);
      body = [table, action] { return action(); };
    });
  }

  const std::string see = fmt::format("(see ingot {}--help)", command.empty() ? "" : command + " ");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    app.exit(asked);
    return nullptr;
  } catch (const CLI::ExtrasError&) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{} {}", unexpected_words(app), see));
  } catch (const CLI::ParseError& failure) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{} {}", in_our_words(failure), see));
  }
  return body;
}

}  // namespace ingot::cli
