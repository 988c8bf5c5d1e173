#pragma once

#include <filesystem>
#include <string>

namespace ingot::testing {

/// The verdict of the default levels on an output.
struct Verdict {
  bool passed = true;
  std::string text;  ///< the faults that were found, a line each
};

Verdict judge_default(const std::filesystem::path& source, const std::filesystem::path& output);

}  // namespace ingot::testing
