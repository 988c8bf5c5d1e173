// Turns tables of flags into a parser of CLI11: the only file that knows that library, whose header
// costs more time to compile than a command.
#include "cli/command_line.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <string_view>
#include <type_traits>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/commands/commands.h"
#include "cli/terminal/terminal.h"
#include "convert/recipe/recipe.h"
#include "convert/recipe/selector.h"
#include "engines/serving.h"
#include "formats/base/error.h"
#include "formats/base/printable.h"
#include "formats/base/words.h"
#include "formats/json/json.h"
#include "formats/text/spelling.h"
#include "library/options/flag_table.h"
#include "library/options/settings.h"
#include "report/table_text.h"

namespace ingot::cli {

using formats::Json;

namespace {

// The type as which CLI11 reads the words of a variable.
template <typename T>
struct Said {
  using Type = T;
};
template <typename T>
struct Said<std::optional<T>> {
  using Type = T;
};
template <>
struct Said<std::filesystem::path> {
  using Type = std::string;
};

// The numbers that an option of a type of CLI11 takes.
std::string_view numbers_of(const std::string& type) {
  if (type.starts_with("UINT")) return "whole number from 0 on, or too large";
  return type.starts_with("INT") ? "whole number, or too large" : "number";
}

// Adds a flag whose value is put into the settings.
template <typename T>
CLI::Option* add_flag_to(CLI::App& app, const Flag& flag, const T* target, Json& settings) {
  const std::string key(key_of(flag));
  const auto put = [&settings, key](const auto& said) { settings[key] = said; };
  if constexpr (std::is_same_v<T, bool>) {
    const std::string& letter = flag.rule.letter;
    const auto read = [put](const CLI::results_t& words) {
      bool said = false;
      const bool is_read = CLI::detail::lexical_cast(words[0], said);
      put(said);
      return is_read;
    };
    return app.add_option(letter.empty() ? flag.name : letter + "," + flag.name, read, flag.help)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
        ->expected(0);
  } else if constexpr (std::is_same_v<T, std::optional<bool>>) {
    return app.add_flag_function(
        fmt::format("{},!--no-{}", flag.name, flag.name.substr(2)),
        [put](std::int64_t times) { put(times > 0); }, flag.help);
  } else {
    const std::string& letter = flag.rule.letter;
    CLI::Option* option = app.add_option_function<typename Said<T>::Type>(
        letter.empty() ? flag.name : letter + "," + flag.name, put, flag.help);
    if constexpr (std::is_unsigned_v<typename Said<T>::Type>) {
      // CLI11 wraps numbers of 64 bits around.
      option->check([](const std::string& word) {
        return word.starts_with('-') ? fmt::format("'{}' is no {}", word, numbers_of("UINT"))
                                     : std::string();
      });
    }
    // An option is repeated; words without one are all taken.
    if constexpr (std::is_same_v<T, std::vector<std::string>>)
      option->allow_extra_args(!flag.name.starts_with('-'));
    if constexpr (std::is_same_v<T, std::string> || std::is_arithmetic_v<T>) {
      if (*target != T()) option->default_str(fmt::format("{}", *target));
    }
    return option;
  }
}

// Returns what --help says of a value: its type, and the rules that take_settings() holds it to.
std::string type_of(const FlagRule& rule, std::string type) {
  if (rule.kind != ValueKind::kText) type = value_kind_name(rule.kind);
  if (!rule.value_name.empty()) type = rule.value_name;
  if (rule.is_positive) type += ":above 0";
  if (rule.range) type += fmt::format(":from {} to {}", rule.range->least, rule.range->most);
  if (!rule.choices.empty()) type += fmt::format(":{{{}}}", fmt::join(rule.choices, ","));
  return type;
}

// On a terminal help is filled to its width, behind the column of names, which is CLI11's own.
constexpr int kNames = 30;
std::string help_text(std::string_view help, int names = kNames) {
  constexpr int kLeast = 30, kMost = 120;
  if (!stderr_is_terminal()) return std::string(help);
  const int width = std::max(std::min(terminal_width(), kMost) - names, kLeast);
  return fmt::format("{}", fmt::join(filled_lines(help, static_cast<std::size_t>(width)), "\n"));
}

// The end of `-h`: some examples, and where the others are.
std::string short_footer(std::string_view footer, std::size_t n_hidden, std::string_view command) {
  constexpr int kLines = 6;
  std::size_t end = 0;
  for (int i = 0; i < kLines && end != std::string_view::npos; ++i)
    end = footer.find('\n', end + 1);
  return fmt::format("{}\n{} more options, and all examples: ingot {} --help",
                     footer.substr(0, end), n_hidden, command);
}

// The words of a call are put into the settings as they are parsed. Help shows those of `shown`
// (none: all).
void declare(const FlagTable& table, CLI::App& app, Json& settings, std::string_view shown) {
  // CLI11 shows headings in the order in which their first flags were added.
  std::vector<const FlagTable::Row*> rows;
  for (const FlagTable::Row& row : table.rows) rows.push_back(&row);
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto* a, const auto* b) { return a->group < b->group; });
  // Kept here: CLI11 ends the program where there is no memory to look for one.
  std::map<std::string_view, CLI::Option*> options;
  std::size_t n_hidden = 0;
  for (const FlagTable::Row* row : rows) {
    const Flag& flag = row->flag;
    const bool is_hidden =
        !shown.empty() && !is_positional(flag) &&
        fmt::format(" {} ", shown).find(fmt::format(" {} ", flag.name)) == std::string::npos;
    if (is_hidden) ++n_hidden;
    CLI::Option* option = std::visit(
        [&](auto* target) { return add_flag_to(app, flag, target, settings); }, flag.target);
    options[flag.name] = option;
    option->required(flag.rule.is_required);
    option->type_name(type_of(flag.rule, option->get_type_name()));
    option->description(help_text(flag.help));
    option->group(is_hidden ? "" : std::string(heading_of(row->group)));
  }
  // Help of some options says nothing about those that it leaves out.
  if (!shown.empty()) rows.clear();
  for (const FlagTable::Row* row : rows) {
    CLI::Option* option = options.at(row->flag.name);
    if (!row->flag.rule.needs.empty()) option->needs(options.at(row->flag.rule.needs));
    for (const std::string& other : row->flag.rule.excludes) option->excludes(options.at(other));
  }
  app.footer(n_hidden == 0 ? table.footer : short_footer(table.footer, n_hidden, table.command));
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
    Spoken{"--adapter", "that is --lora"},
    Spoken{"--quantization", "that is --to"},
    Spoken{"--dtype", "that is --to"},
    Spoken{"--tensor-parallel-size", "that is --tp"},
    Spoken{"--output", "the output is the second word"},
};

// A call in the words of other programs, put into ours.
class Correction {
 public:
  explicit Correction(std::vector<std::string> said) : said_(std::move(said)) {
    command_ = said_.empty() ? "" : said_.front();
    for (std::size_t i = 0; i < said_.size(); ++i) take(i);
    const auto count = std::ranges::find(words_, "--count");
    if (!reasons_.empty() && count != words_.end() && std::ranges::count(words_, "--gpu") == 0) {
      words_.insert(count, {"--gpu", "h100"});
      reasons_.emplace_back("--gpu says which (ingot list gpus)");
    }
    if (!family_file_.empty()) {
      const bool is_named = said_.size() > 1 && !said_[1].starts_with('-');
      words_ = {"family", "learn", is_named ? said_[1] : "DIR", "--out", family_file_};
      reasons_.emplace_back("--write-family is a command of its own now");
    }
  }
  // Throws kInvalidArgument with the whole call, if a word was another program's.
  void require_none() const {
    if (reasons_.empty()) return;
    std::string call = "ingot";
    for (const std::string& word : words_) call += " " + engines::shell_word(word);
    throw Error(ErrorCode::kInvalidArgument, "{}; type\n  {}", fmt::join(reasons_, "; "), call);
  }

 private:
  // Takes an option with its value, or a word; `i` becomes the last of them.
  void take(std::size_t& i) {
    const std::string& word = said_[i];
    const std::size_t equals = word.starts_with("--") ? word.find('=') : std::string::npos;
    const std::string option = word.substr(0, equals);
    const auto row = std::ranges::find(kOptions, option, &Option::name);
    const bool is_here =
        row != kOptions.end() && (row->command.empty() || row->command == command_);
    const bool has_value = equals != std::string::npos || i + 1 < said_.size();
    if (!is_here || !has_value) {
      words_.push_back(word);
      return;
    }
    const std::string value = equals != std::string::npos ? word.substr(equals + 1) : said_[++i];
    if (option == kWriteFamily) family_file_ = value;
    const std::vector<std::string> ours = row->in_our_words(value);
    if (ours.empty()) {
      words_.push_back(word);
      if (equals == std::string::npos) words_.push_back(value);
      return;
    }
    words_.insert(words_.end(), ours.begin(), ours.end());
    reasons_.push_back(fmt::format("{} '{}' is {} here", option, printable(value),
                                   printable(fmt::format("{}", fmt::join(ours, " ")))));
  }

  static std::string scheme(const std::string& word) {
    return std::string(convert::scheme_meant(word));
  }
  static bool is_role(std::string_view word) { return is_in(convert::role_words(), word); }
  static std::vector<std::string> in_target(const std::string& value) {
    const std::string ours = scheme(value);
    return ours.empty() ? std::vector<std::string>() : std::vector<std::string>{"--to", ours};
  }
  static std::vector<std::string> in_rule(const std::string& value) {
    const std::size_t equals = value.rfind('=');
    if (equals == std::string::npos) return {};
    const std::string selector = value.substr(0, equals), word = value.substr(equals + 1);
    const std::string ours = scheme(word);
    if (ours.empty() && !is_role(selector)) return {};
    return {"--rule", fmt::format("{}{}={}", is_role(selector) ? "role:" : "", selector,
                                  ours.empty() ? word : ours)};
  }
  // Modules that llm-compressor leaves as they are.
  static std::vector<std::string> in_ignored(const std::string& value) {
    const bool is_pattern = value.starts_with("re:") || value.find('*') != std::string::npos;
    return {"--rule", is_role(value) ? fmt::format("role:{}=keep", value)
                      : is_pattern   ? value + "=keep"
                                     : fmt::format("*{}*=keep", value)};
  }
  // `8xh100`
  static std::vector<std::string> in_gpu(const std::string& value) {
    const std::size_t times = value.find_first_of("xX");
    if (times == std::string::npos || !number_from(std::string_view(value).substr(0, times)))
      return {};
    return {"--gpu", value.substr(times + 1), "--count", value.substr(0, times)};
  }

  static constexpr std::string_view kWriteFamily = "--write-family";
  struct Option {
    std::string_view name, command;  // an empty command: of all that have it
    std::vector<std::string> (*in_our_words)(const std::string& value);
  };
  static constexpr std::array kOptions = {
      Option{"--to", "", in_target},
      Option{"--scheme", "synth",
             [](const std::string& value) {
               std::vector<std::string> ours = in_target(value);
               if (!ours.empty()) ours.front() = "--scheme";
               return ours;
             }},
      Option{"--rule", "", in_rule},
      Option{"--ignore", "convert", in_ignored},
      Option{"--gpu", "inspect", in_gpu},
      Option{"--gpus", "inspect",
             [](const std::string& value) {
               return std::vector<std::string>{"--count", value};
             }},
      Option{kWriteFamily, "", [](const std::string&) { return std::vector<std::string>(); }},
      Option{"--for", "check",
             [](const std::string& value) {
               return std::vector<std::string>{"--engine", value};
             }},
  };

  std::vector<std::string> said_, words_, reasons_;
  std::string command_, family_file_;
};

void require_own_words(const std::vector<std::string>& words) {
  // Everything behind -- is a name.
  if (std::ranges::find(words, "--") == words.end()) Correction(words).require_none();
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
  Json settings = Json::object();
  const std::vector<std::string> said(argv + 1, argv + argc);
  require_own_words(said);
  const bool is_short = std::ranges::find(said, "-h") != said.end();
  const Command* asked = command_of_help(argc, argv);
  const std::string_view called = asked != nullptr ? asked->name : std::string_view(command);
  for (const Command& row : commands()) {
    CLI::App* sub = app.add_subcommand(std::string(row.name), help_text(row.summary));
    if (row.name != called) continue;  // only its name and summary are shown
    sub->set_help_flag("-h,--help", "print this help and exit");
    const DeclaredCommand declared = declare_command(row);
    declare(*declared.table, *sub, settings, is_short ? row.main_options : std::string_view());
    sub->final_callback([&, declared] {
      take_settings(settings, *declared.table);
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
