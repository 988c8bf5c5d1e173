#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "library/options/flag_table.h"
#include "verify/verification.h"

namespace ingot {

/// Options of measuring checkpoints against each other.
struct MeasurementOptions {
  /// Set by the flags; threads: 0 for every processor.
  verify::VerificationOptions options = {.threads = 0};
  std::string levels = "structure,weights", profile = "native", mem_limit = "4GiB";
  bool no_hashes = false;
  std::vector<std::string> sources;  ///< --sources NAME=DIR
  std::string lora;                  ///< the adapter that the output has; empty: none
  std::optional<double> lora_scale;
  std::optional<std::string> expert_b_order;
};

/// --levels.
Flag levels_flag(MeasurementOptions& flags);
/// The flags about levels and the run of the job; `is_pair()`: whether two checkpoints are
/// compared.
void declare_measurement_options(FlagTable& table, MeasurementOptions& flags,
                                 const std::function<bool()>& is_pair);
/// Declares the flags that say how an output's source is made: sources of a composition, an
/// adapter. `idle`: FlagRule::idle of these.
void declare_source_changes(FlagTable& table, MeasurementOptions& flags,
                            const std::function<std::string_view()>& idle);
/// Declares the flags of a verification: those above, gates, and how each side is read.
void declare_verification(FlagTable& table, MeasurementOptions& flags,
                          const std::function<bool()>& is_pair);

/// The directory of the source that a verification names: itself, or, for a recipe of several
/// sources, its base; then `options.sources` has the others.
std::string verified_source(const std::string& given, const MeasurementOptions& flags,
                            verify::VerificationOptions& options);

/// The options of the flags. Throws for faults in them.
verify::VerificationOptions measurement_options(const MeasurementOptions& flags);

}  // namespace ingot
