#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "library/checking.h"
#include "library/options/flag_table.h"

namespace ingot::cli {

/// Flags of `check` that ask a running engine.
struct LiveFlags {
  std::string url, gpu, progress = "auto";
  std::filesystem::path answer, learn, against;
  std::optional<std::uint32_t> ep;
  std::uint64_t timeout_seconds = 900;
  bool allow_http = false;

  [[nodiscard]] bool is_asked_for() const { return !url.empty() || !answer.empty(); }
};
void declare_live(FlagTable& table, LiveFlags& flags);

/// Compares what the engine tells with the files of a checkpoint, and prints it. Returns true if
/// nothing differs, and nothing is missing.
bool passes_live_check(const LiveFlags& flags, const library::CheckOptions& of);

}  // namespace ingot::cli
