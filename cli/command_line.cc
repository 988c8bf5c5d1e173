// Turns tables of flags into a parser of CLI11: the only file that knows that library, whose header
// costs more time to compile than a command.
#include "cli/command_line.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <string_view>
#include <type_traits>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/commands/commands.h"
#include "cli/terminal/terminal.h"
#include "formats/base/error.h"
#include "formats/base/words.h"
#include "formats/text/spelling.h"
#include "formats/text/text_input.h"
#include "library/options/flag_table.h"
#include "library/options/hub_names.h"
#include "report/table_text.h"

namespace ingot::cli {
namespace {

template <typename T>
CLI::Option* add_flag_to(CLI::App& app, const Flag& flag, T* target) {
  if constexpr (std::is_same_v<T, bool>) {
    const std::string& letter = flag.rule.letter;
    return app.add_flag(letter.empty() ? flag.name : letter + "," + flag.name, *target, flag.help);
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
    // An option is repeated; words without one are all taken.
    if constexpr (std::is_same_v<T, std::vector<std::string>>)
      option->allow_extra_args(!flag.name.starts_with('-'));
    if constexpr (std::is_same_v<T, std::string> || std::is_arithmetic_v<T>) {
      if (*target != T()) option->capture_default_str();
    }
    return option;
  }
}

// As CLI::IsMember, with the choice that was meant.
void demand_choice(const FlagRule& rule, CLI::Option& option) {
  if (rule.choices.empty()) return;
  const std::string shown = fmt::format("{{{}}}", fmt::join(rule.choices, ","));
  const auto refusal = [rule, shown](const std::string& value) -> std::string {
    const std::string word = rule.ignores_case ? lower_case(value) : value;
    if (std::find(rule.choices.begin(), rule.choices.end(), word) != rule.choices.end()) return {};
    const std::vector<std::string_view> choices(rule.choices.begin(), rule.choices.end());
    return fmt::format("{} not in {}{}", value, shown, did_you_mean(word, choices));
  };
  option.check(refusal, shown);
}

// As CLI::Range and CLI::PositiveNumber, in our words.
void demand_number(const FlagRule& rule, CLI::Option& option) {
  const auto add = [&](double least, double most, bool is_above, const std::string& shown) {
    option.check(
        [=](const std::string& text) -> std::string {
          double value = 0;
          const bool is_number = CLI::detail::lexical_cast(text, value);
          const bool is_in = value <= most && (is_above ? value > least : value >= least);
          return is_number && is_in ? std::string() : fmt::format("{} is not {}", text, shown);
        },
        shown);
  };
  if (rule.is_positive) add(0, HUGE_VAL, true, "above 0");
  if (rule.range) {
    add(rule.range->least, rule.range->most, false,
        fmt::format("from {} to {}", rule.range->least, rule.range->most));
  }
}

void demand(const FlagRule& rule, CLI::Option& option) {
  option.required(rule.is_required);
  demand_number(rule, option);
  demand_choice(rule, option);
  if (rule.kind != ValueKind::kText) option.type_name(std::string(value_kind_name(rule.kind)));
  if (!rule.value_name.empty()) option.type_name(rule.value_name);
}

// On a terminal help is filled to its width, behind the column of names, which is CLI11's own.
constexpr int kNames = 30;
std::string help_text(std::string_view help, int names = kNames) {
  constexpr int kLeast = 30, kMost = 120;
  if (!stderr_is_terminal()) return std::string(help);
  const int width = std::max(std::min(terminal_width(), kMost) - names, kLeast);
  return fmt::format("{}", fmt::join(filled_lines(help, static_cast<std::size_t>(width)), "\n"));
}

void declare(const FlagTable& table, CLI::App& app) {
  // CLI11 shows headings in the order in which their first flags were added.
  std::vector<const FlagTable::Row*> rows;
  for (const FlagTable::Row& row : table.rows) rows.push_back(&row);
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto* a, const auto* b) { return a->group < b->group; });
  // Kept here: CLI11 ends the program where there is no memory to look for one.
  std::map<std::string_view, CLI::Option*> options;
  for (const FlagTable::Row* row : rows) {
    const Flag& flag = row->flag;
    CLI::Option* option =
        std::visit([&](auto* target) { return add_flag_to(app, flag, target); }, flag.target);
    options[flag.name] = option;
    demand(flag.rule, *option);
    option->description(help_text(flag.help));
    option->group(std::string(heading_of(row->group)));
  }
  for (const FlagTable::Row* row : rows) {
    CLI::Option* option = options.at(row->flag.name);
    if (!row->flag.rule.needs.empty()) option->needs(options.at(row->flag.rule.needs));
    for (const std::string& other : row->flag.rule.excludes) option->excludes(options.at(other));
  }
  app.footer(table.footer);
}

void note_given(const CLI::App& app, FlagTable& table) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() > 0)
      table.given.insert((option->get_positional() ? "" : "--") + option->get_single_name());
  }
}

// Flags that name a file get the path of the standard input for "-".
void take_stdin(const FlagTable& table) {
  std::string reader;
  for (const FlagTable::Row& row : table.rows) {
    const Flag& flag = row.flag;
    if (!flag.rule.takes_stdin || !table.is_given(flag.name)) continue;
    auto* const* path = std::get_if<std::filesystem::path*>(&flag.target);
    std::string* text = text_of(flag);
    const bool is_dash = path != nullptr ? **path == "-" : text != nullptr && *text == "-";
    if (!is_dash) continue;
    if (!reader.empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "{} and {} both read the standard input (give one of them a file)", reader,
                  flag.name);
    }
    reader = flag.name;
    if (path != nullptr) {
      **path = kStandardInput;
    } else if (flag.rule.kind == ValueKind::kFile) {
      *text = kStandardInput;
    }
  }
}

// The numbers that an option of a type of CLI11 takes.
std::string_view numbers_of(const std::string& type) {
  if (type.starts_with("UINT")) return "whole number from 0 on, or too large";
  return type.starts_with("INT") ? "whole number, or too large" : "number";
}

// CLI11's sentences about values. It begins others with a capital; an option keeps its case.
std::string in_our_words(const CLI::ParseError& failure, const CLI::App& app) {
  std::string text = failure.what();
  const std::string name = text.substr(0, text.find(": "));
  constexpr std::string_view kNoNumber = "Could not convert: ", kReceived = " received ";
  if (failure.get_name() == "ConversionError" && text.starts_with(kNoNumber)) {
    const std::size_t equals = text.find(" = ");
    const std::string option = text.substr(kNoNumber.size(), equals - kNoNumber.size());
    for (const CLI::App* sub : app.get_subcommands()) {
      if (const CLI::Option* found = sub->get_option_no_throw(option))
        return fmt::format("{}: '{}' is no {}", option, text.substr(equals + 3),
                           numbers_of(found->get_type_name()));
    }
  }
  if (failure.get_name() == "ArgumentMismatch") {
    const std::size_t received = text.find(kReceived);
    return received == std::string::npos
               ? fmt::format("{} needs a value", name)
               : fmt::format("{} is there {} times, and can be there once", name,
                             text.substr(received + kReceived.size()));
  }
  if (text.size() > 1 && text[0] >= 'A' && text[0] <= 'Z' && text[1] >= 'a' && text[1] <= 'z') {
    text[0] = static_cast<char>(text[0] - 'A' + 'a');
  }
  while (!text.empty() && (text.back() == '\n' || text.back() == '.')) text.pop_back();
  return text;
}

// Options of other programs, and what does the same here.
constexpr std::array kSpoken = {
    Spoken{"--lora", "a LoRA is added to its model beforehand, by PEFT's merge_and_unload()"},
    Spoken{"--quantization", "that is --to"},
    Spoken{"--dtype", "that is --to"},
    Spoken{"--tensor-parallel-size", "that is --tp"},
    Spoken{"--output", "the output is the second word"},
};

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
  const auto option = std::find_if(words.begin(), words.end(),
                                   [](const std::string& word) { return word.starts_with("--"); });
  if (option == words.end()) return text;
  const std::string word = option->substr(0, option->find('='));
  return text + meaning_of(word, kSpoken, choices);
}

// `ingot help CONVERT` is `ingot convert --help`; the help command handles all other topics.
const Command* command_of_help(int argc, const char* const* argv) {
  if (argc != 3 || std::string_view(argv[1]) != "help") return nullptr;
  return find_command(lower_case(argv[2]));
}

void describe_program(CLI::App& app) {
  app.name("ingot");
  app.set_help_flag("-h,--help", "print this help and exit");
  app.set_version_flag("-V,--version", versions_text(),
                       "print versions of ingot and its libraries");
  app.footer(kProgramFooter);
}

}  // namespace

std::function<int()> parse_command_line(int argc, const char* const* argv,
                                        const std::string& command) {
  CLI::App app(help_text(kProgramSummary, 0));
  describe_program(app);
  app.require_subcommand(0, 1);
  std::function<int()> body;
  const Command* asked = command_of_help(argc, argv);
  const std::string_view called = asked != nullptr ? asked->name : std::string_view(command);
  for (const Command& row : commands()) {
    CLI::App* sub = app.add_subcommand(std::string(row.name), help_text(row.summary));
    if (row.name != called) continue;  // only its name and summary are shown
    sub->set_help_flag("-h,--help", "print this help and exit");
    const DeclaredCommand declared = declare_command(row);
    declare(*declared.table, *sub);
    sub->final_callback([&body, sub, declared] {
      note_given(*sub, *declared.table);
      take_stdin(*declared.table);
      mark_values(*declared.table);
      open_hub_names(*declared.table);
      refuse_idle_flags(*declared.table);
      refuse_shared_outputs(*declared.table);
      body = declared.run;
    });
  }

  const std::string see = fmt::format("(see ingot {}--help)", command.empty() ? "" : command + " ");
  try {
    if (asked != nullptr) {
      const std::string name(asked->name);
      const std::array<const char*, 3> words = {argv[0], name.c_str(), "--help"};
      app.parse(static_cast<int>(words.size()), words.data());
    } else {
      app.parse(argc, argv);
    }
    if (body == nullptr) throw CLI::CallForHelp();
  } catch (const CLI::Success& success) {
    app.exit(success);
    return nullptr;
  } catch (const CLI::ExtrasError&) {
    throw Error(ErrorCode::kInvalidArgument, "{} {}", unexpected_words(app), see);
  } catch (const CLI::ParseError& failure) {
    throw Error(ErrorCode::kInvalidArgument, "{} {}", in_our_words(failure, app), see);
  }
  return body;
}

}  // namespace ingot::cli
