#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "formats/json/json_fwd.h"

namespace ingot {

/// Headings of `ingot COMMAND --help`, in the order of their appearance; the common flags come
/// first.
enum class FlagGroup {
  kCommon,
  kSource,
  kTarget,
  kSlicing,
  kComparison,
  kPrompts,
  kAnswers,
  kJob,
  kReport
};
inline constexpr std::size_t kFlagGroups = 9;

/// The variable that a flag sets; it outlives the parse. A bool becomes true where the flag is
/// given. An optional bool has a second flag, --no-NAME, that sets it to false. A vector gets one
/// value each time.
using FlagTarget = std::variant<std::string*, std::filesystem::path*, std::optional<std::string>*,
                                std::vector<std::string>*, bool*, std::optional<bool>*,
                                std::uint64_t*, std::optional<std::uint64_t>*,
                                std::optional<std::uint32_t>*, double*, std::optional<double>*>;

struct NumberRange {
  double least = 0, most = 0;
};

/// The kind of a text: --help names it, completions offer it.
enum class ValueKind : std::uint8_t {
  kText,
  kSize,
  kFile,
  kFolder,
  kPath,              ///< a folder, or a file
  kCheckpoint,        ///< a folder that is read, or the name of a model in the hub's cache
  kCheckpointOrFile,  ///< one of these, or one .safetensors file
  kNamedCheckpoint,   ///< NAME=DIR, of a list: a name of a recipe, and one of the first of these
};
/// True if a value may be the name of a model in the hub's cache.
inline bool names_checkpoint(ValueKind kind) {
  return kind >= ValueKind::kCheckpoint;
}
/// The word for it in --help; empty for kText.
std::string_view value_kind_name(ValueKind kind);

/// Rules for a flag in addition to its type, and facts about its value.
struct FlagRule {
  bool is_required = false;
  bool is_positive = false;
  std::optional<NumberRange> range = {};
  std::vector<std::string> choices = {};  ///< empty: any value
  /// Values that completions offer, where the command itself says which it takes.
  std::vector<std::string> words = {};
  bool words_begin = false;   ///< completion offers no blank: words are beginnings of values
  bool ignores_case = false;  ///< choices are the same in capital letters
  std::string needs = {};     ///< the flag that must be given too
  std::vector<std::string> excludes = {};
  std::string value_name = {};  ///< word of --help, instead of the type
  std::string letter = {};      ///< its short name: `-q`
  ValueKind kind = ValueKind::kText;
  /// Put before the value, where flags share a variable.
  std::string mark = {};
  /// The value is a file or a folder that the command writes.
  bool is_written = false;
  /// The flag is about a terminal, or a launcher: calls of the shared library have none of this
  /// name.
  bool is_for_people = false;
  /// The value - is the standard input. A flag that names a file gets its path instead.
  bool takes_stdin = false;
  /// The owner of the flag, where it would change nothing; empty where it acts. Asked when all
  /// flags are known and this one was given.
  std::function<std::string_view()> idle = {};
};

/// FlagRule::idle: the flag belongs to `what`, and acts where `acts()` is true.
template <typename Acts>
std::function<std::string_view()> belongs_to(std::string_view what, Acts acts) {
  return [what, acts] { return acts() ? std::string_view() : what; };
}

/// A flag of a command, or, without leading dashes, a word at its place. --help shows the value of
/// the variable as the default, unless that is empty or 0.
struct Flag {
  std::string name;
  FlagTarget target;
  std::string help;
  FlagRule rule = {};
};

/// The flags of one command.
struct FlagTable {
  struct Row {
    FlagGroup group;
    Flag flag;
  };
  std::vector<Row> rows;
  std::string command, footer;
  /// Settings of the run as they were said: what take_settings() took.
  formats::JsonValue settings;

  void add(FlagGroup group, std::vector<Flag> flags) {
    for (Flag& flag : flags) rows.push_back({group, std::move(flag)});
  }
  [[nodiscard]] bool is_given(std::string_view name) const;
};

/// The key of a flag in settings: its name without dashes.
std::string_view key_of(const Flag& flag);
/// The variable of a flag whose value is one text, if that was given or has a default; else null.
std::string* text_of(const Flag& flag);
/// True if a flag is a word at its place; true if it takes a value.
bool is_positional(const Flag& flag);
bool takes_value(const Flag& flag);
/// The values to be offered: its choices, or words.
const std::vector<std::string>& offered_values(const Flag& flag);

/// A command as its words: the source of --help, completions and manual pages.
struct CommandWords {
  std::string name, summary;
  const FlagTable* table = nullptr;
};
/// The heading of a group in --help.
std::string_view heading_of(FlagGroup group);

/// Throws kInvalidArgument: the flag is given, and would change nothing here.
[[noreturn]] void refuse_idle(std::string_view flag, std::string_view belongs_to);
/// Refuses the first given flag that FlagRule::idle finds idle.
void refuse_idle_flags(const FlagTable& table);

/// Throws kInvalidArgument where two flags name one file to write, or a file in a folder that the
/// command writes. Devices and pipes may be named twice.
void refuse_shared_outputs(const FlagTable& table);

/// Puts FlagRule::mark before the values of given flags.
void mark_values(const FlagTable& table);

/// A flag, or a word at its place, that must be given.
Flag required(std::string name, FlagTarget target, std::string help,
              ValueKind kind = ValueKind::kText);

/// A required word: a file or a folder that the command writes.
Flag required_output(std::string name, FlagTarget target, std::string help, ValueKind kind);

/// The names of rows, for --help: `a, b, c`.
template <typename Range, typename Name>
std::string names_of(const Range& rows, const Name& name) {
  std::string text;
  for (const auto& row : rows)
    text += (text.empty() ? "" : ", ") + std::string(std::invoke(name, row));
  return text;
}

/// The names of rows, to be offered as values.
template <typename Range, typename Name>
std::vector<std::string> words_of(const Range& rows, const Name& name) {
  std::vector<std::string> words;
  for (const auto& row : rows) words.emplace_back(std::invoke(name, row));
  return words;
}

// Flags of most commands.
Flag threads_flag(std::size_t* target);
Flag progress_flag(std::string* target);
Flag json_flag(bool* target);
Flag family_flag(std::string* target, std::string help);
/// The family of a file, in the variable of --family.
Flag family_file_flag(std::string* target);
/// --family, --family-file and --config: how a checkpoint is read.
void declare_source(FlagTable& table, std::string& family, std::string& config,
                    std::string family_help);
Flag mem_limit_flag(std::string* target, std::string help = "memory budget");
/// The threads that were asked for, or every processor.
std::size_t threads_of(std::size_t given);

inline constexpr const char* kDirectoryHelp = "directory of the checkpoint, whole or in slices";
inline constexpr const char* kPathHelp =
    "directory of the checkpoint, whole or in slices, or one .safetensors file";
inline constexpr const char* kOutputHelp = "directory to write; must be absent or empty";
inline constexpr const char* kFamilyHelp =
    "model family instead of config.json's; generic accepts any names";
inline constexpr const char* kConfigHelp = "config.json of the model, for shards without one";

/// Bytes of `5GB`, `4 GiB`, `16Gi`, `0.5M`, `1048576B`: a number, at most one blank, and a decimal
/// or binary unit in any case. Throws kInvalidArgument naming the option, also without a unit.
std::uint64_t parse_size(std::string_view text, std::string_view option);
/// The bytes of --mem-limit, or those that the system and its control groups leave where these are
/// fewer: a process that takes more is killed.
std::uint64_t memory_budget(std::string_view mem_limit);

}  // namespace ingot
