#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "cli/terminal/progress.h"
#include "library/options/flag_table.h"
#include "verify/verification.h"

namespace ingot::cli {

/// Flags of commands that measure checkpoints against each other.
struct MeasurementFlags {
  /// Set by the flags; threads: 0 for every processor.
  verify::VerificationOptions options = {.threads = 0};
  std::string levels = "structure,weights", profile = "native", mem_limit = "4GiB";
  std::string html, markdown, progress = "auto";
  std::optional<std::size_t> n_worst;
  bool no_hashes = false;
};

/// --levels.
Flag levels_flag(MeasurementFlags& flags);
/// The flags about levels, the run of the job and its reports; `is_pair()`: whether two
/// checkpoints are compared.
void declare_measurement(FlagTable& table, MeasurementFlags& flags,
                         const std::function<bool()>& is_pair);

/// The options of the flags. Throws for faults in them, and kNotFound for a page that could not be
/// written: before the work.
verify::VerificationOptions measurement_options(const MeasurementFlags& flags);
/// Shows each stage in `progress`, which must outlive the run: weights in bytes, layers and tokens
/// by number.
std::function<void(std::string_view, std::uint64_t, std::uint64_t)> stages_of(Progress& progress);

/// The tensors of a report as JSON: as many as were asked for, at least a hundred.
std::size_t json_worst(const MeasurementFlags& flags);

}  // namespace ingot::cli
