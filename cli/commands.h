#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace ingot::cli {

/// Exit codes of the program. Whoever is stopped by a signal dies of it: a shell says 130 for
/// Ctrl-C, 143 for SIGTERM.
inline constexpr int kExitDone = 0;
inline constexpr int kExitBelowThreshold = 1;
inline constexpr int kExitTrouble = 2;

/// A subcommand: declares its options on `app` and returns what to run once they are parsed. `run`
/// returns the exit code and throws ingot::Error.
struct Command {
  std::string_view name;
  std::string_view summary;
  std::function<int()> (*declare)(CLI::App& app);
  bool resumes = false;  ///< has --resume
};

/// Every subcommand, in the order of --help; a new one is one file and one line in commands.cc.
std::span<const Command> commands();

std::function<int()> declare_calibrate(CLI::App& app);
std::function<int()> declare_check(CLI::App& app);
std::function<int()> declare_convert(CLI::App& app);
std::function<int()> declare_generate(CLI::App& app);
std::function<int()> declare_inspect(CLI::App& app);
std::function<int()> declare_list(CLI::App& app);
std::function<int()> declare_merge(CLI::App& app);
std::function<int()> declare_synth(CLI::App& app);
std::function<int()> declare_verify(CLI::App& app);

}  // namespace ingot::cli
