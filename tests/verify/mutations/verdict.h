#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace ingot::testing {

/// The verdict of the default levels on an output.
struct Verdict {
  bool passed = true;
  std::string text;  ///< the faults that were found, a line each
};

/// Ends with the structure where that fails and names `fault`; the verdict is the same.
Verdict judge_default(const std::filesystem::path& source, const std::filesystem::path& output,
                      std::string_view fault = {});

}  // namespace ingot::testing
