#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/base/error.h"
#include "formats/json/json_fwd.h"
#include "library/options/flag_table.h"

namespace ingot::cli {

/// Exit codes of the program. A command that a signal stops dies of it: a shell says 130 for
/// Ctrl-C, 143 for SIGTERM.
inline constexpr int kExitDone = 0;
inline constexpr int kExitBelowThreshold = 1;
inline constexpr int kExitTrouble = 2;

/// A subcommand: puts its flags into `table` and returns a function that runs it once they are
/// parsed. The function returns the exit code and throws ingot::Error.
struct Command {
  std::string_view name;
  std::string_view summary;
  std::function<int()> (*declare)(FlagTable& table);
  /// Options that -h shows, ten at most; --help shows all. Empty: all are few.
  std::string_view main_options = {};
  /// The option that continues a stopped job, empty where the same command does; nullopt: none.
  std::optional<std::string_view> continued_by = {};
};

/// Every subcommand, in the order of --help; a new one is one file and one line in commands.cc.
std::span<const Command> commands();

/// The one of this name, or null.
const Command* find_command(std::string_view name);

/// A command with its flags, and with those of every command. `run` may be called once the table's
/// targets are set.
struct DeclaredCommand {
  std::shared_ptr<FlagTable> table;
  std::function<int()> run;
};
DeclaredCommand declare_command(const Command& command);

/// Every command, declared for its words.
class AllCommands {
 public:
  AllCommands();
  [[nodiscard]] std::span<const CommandWords> words() const { return words_; }

 private:
  std::vector<DeclaredCommand> declared_;
  std::vector<CommandWords> words_;
};

/// The name of the value of a flag, in a synopsis.
std::string value_of(const Flag& flag);

/// Texts of `ingot --help` before and after its commands.
extern const char* const kProgramSummary;
extern const char* const kProgramFooter;

std::function<int()> declare_attest(FlagTable& table);
std::function<int()> declare_balance(FlagTable& table);
std::function<int()> declare_calibrate(FlagTable& table);
std::function<int()> declare_check(FlagTable& table);
std::function<int()> declare_compare(FlagTable& table);
std::function<int()> declare_completions(FlagTable& table);
std::function<int()> declare_compose(FlagTable& table);
std::function<int()> declare_convert(FlagTable& table);
std::function<int()> declare_delta(FlagTable& table);
std::function<int()> declare_family(FlagTable& table);
std::function<int()> declare_generate(FlagTable& table);
std::function<int()> declare_help(FlagTable& table);
std::function<int()> declare_inspect(FlagTable& table);
std::function<int()> declare_join(FlagTable& table);
std::function<int()> declare_list(FlagTable& table);
std::function<int()> declare_merge(FlagTable& table);
std::function<int()> declare_prune(FlagTable& table);
std::function<int()> declare_rederive(FlagTable& table);
std::function<int()> declare_repair(FlagTable& table);
std::function<int()> declare_synth(FlagTable& table);
std::function<int()> declare_verify(FlagTable& table);

}  // namespace ingot::cli
