#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "cli/terminal/progress.h"
#include "library/options/measurement_options.h"
#include "verify/verification.h"

namespace ingot::cli {

/// Flags of commands that measure checkpoints against each other, and print a report of it.
struct MeasurementFlags : MeasurementOptions {
  std::string html, markdown, progress = "auto";
  std::optional<std::size_t> n_worst;
};

/// The flags about the report; the others are declare_measurement_options()'s.
void declare_measurement_report(FlagTable& table, MeasurementFlags& flags);

/// The options of the flags. Throws for faults in them, and for a page that could not be written:
/// before the work.
verify::VerificationOptions measurement(const MeasurementFlags& flags);
/// Shows each stage in `progress`, which must outlive the run: weights in bytes, layers and tokens
/// by number.
std::function<void(std::string_view, std::uint64_t, std::uint64_t)> stages_of(Progress& progress);

/// The tensors of a report as JSON: as many as were asked for, at least a hundred.
std::size_t json_worst(const MeasurementFlags& flags);

}  // namespace ingot::cli
