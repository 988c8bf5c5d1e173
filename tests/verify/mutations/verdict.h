#pragma once

#include <filesystem>
#include <string>

namespace ingot::testing {

/// What the default levels say of an output.
struct Verdict {
  bool passed = true;
  std::string text;  ///< what was found wrong, a line each
};

Verdict judge_default(const std::filesystem::path& source, const std::filesystem::path& output);

}  // namespace ingot::testing
