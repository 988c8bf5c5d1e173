#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "verify/verification.h"

namespace ingot::cli {

class FlagTable;

/// Flags that say with what a comparison is judged.
struct GateFlags {
  std::string thresholds;
  std::vector<std::string> requirements;

  /// Throws for a file or a demand that is not understood: before hours of work, not after.
  void require_valid() const;
  void add_to(verify::VerificationOptions& options) const;
};
void declare_gates(FlagTable& table, GateFlags& flags);

/// `structure, weights, layers, greedy`, for --help.
std::string level_names();

}  // namespace ingot::cli
