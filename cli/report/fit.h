#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/report/fit_report.h"
#include "cli/report/loading_report.h"
#include "library/options/target_flags.h"

namespace ingot {
struct FlagTable;
}

namespace ingot::cli {

/// The flags of `inspect --gpu-memory`, `--gpu` and `--loading`: whether a checkpoint, or an output
/// of it, fits the memory of devices, and the bytes that loaders read of it.
struct FitFlags {
  std::string device_memory, gpu, kv_cache, context;
  std::optional<std::uint64_t> sequences;
  std::optional<std::uint32_t> count;
  bool loading = false;
  SlicingFlags slicing;
  TargetFlags target;

  [[nodiscard]] bool is_asked() const { return !device_memory.empty() || !gpu.empty(); }
};

void declare_fit(FlagTable& table, FitFlags& flags);

/// True if a number of GPUs was given, and no form for the weights.
bool asks_for_schemes(const FitFlags& flags);
/// The fits of the checkpoint on --count GPUs in each of some schemes. REQUIRES:
/// asks_for_schemes().
std::vector<SchemeFit> fits_of_schemes(const FitFlags& flags, const formats::Checkpoint& source);

/// Plans the conversion that was asked for, or none, cut for the ranks that were asked for, and
/// writes no file. With --gpu also says how many are needed; without ranks the fit is that of so
/// many, or, where none suffice, of the most that were tried. Throws as a conversion with these
/// options does, and kInvalidArgument for words that are not understood.
Fit fit_of(const FitFlags& flags, const formats::Checkpoint& source);

/// Counts the bytes that each loader reads of the checkpoint on the ranks that were asked for.
/// kInvalidArgument for a rank's slices, which are rank files already; throws as a conversion with
/// these ranks does.
Loading loading_of(const FitFlags& flags, const formats::Checkpoint& source);

}  // namespace ingot::cli
