#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "verify/verification.h"

namespace ingot::cli {

class FlagTable;

/// Words that say with what a comparison is judged.
struct GateWords {
  std::string thresholds;
  std::vector<std::string> requirements;

  /// Throws for a file or a demand that is not understood: before hours of work, not after.
  void require_valid() const;
  void add_to(verify::VerificationOptions& options) const;
};
void declare_gates(FlagTable& table, GateWords& words);

/// `structure, weights, layers, greedy`, for --help.
std::string level_words();

/// The report as `ingot verify` prints it: text, or the JSON document; `n_worst` by --worst.
void print_report(const verify::Report& report, bool json, std::optional<std::size_t> n_worst);

/// kExitDone, or kExitBelowThreshold.
int exit_code_of(const verify::Report& report);

}  // namespace ingot::cli
