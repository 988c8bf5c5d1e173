#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "formats/base/error.h"
#include "formats/json/json_fwd.h"

namespace ingot::cli {

struct FlagTable;

/// Exit codes of the program. Whoever is stopped by a signal dies of it: a shell says 130 for
/// Ctrl-C, 143 for SIGTERM.
inline constexpr int kExitDone = 0;
inline constexpr int kExitBelowThreshold = 1;
inline constexpr int kExitTrouble = 2;

/// A subcommand: puts its flags into `table` and returns what to run once they are parsed. What
/// runs returns the exit code and throws ingot::Error.
struct Command {
  std::string_view name;
  std::string_view summary;
  std::function<int()> (*declare)(FlagTable& table);
  bool resumes = false;  ///< has --resume
};

/// Every subcommand, in the order of --help; a new one is one file and one line in commands.cc.
std::span<const Command> commands();

/// A name as it is, escaped where JSON cannot hold it.
std::string json_name(const std::string& name);
/// The member `error` of JSON documents.
formats::Json error_json(const Error& error);

std::function<int()> declare_calibrate(FlagTable& table);
std::function<int()> declare_check(FlagTable& table);
std::function<int()> declare_compare(FlagTable& table);
std::function<int()> declare_convert(FlagTable& table);
std::function<int()> declare_generate(FlagTable& table);
std::function<int()> declare_inspect(FlagTable& table);
std::function<int()> declare_list(FlagTable& table);
std::function<int()> declare_merge(FlagTable& table);
std::function<int()> declare_synth(FlagTable& table);
std::function<int()> declare_verify(FlagTable& table);

}  // namespace ingot::cli
