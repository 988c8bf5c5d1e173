#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "convert/job/execute.h"
#include "library/options/flag_table.h"

namespace ingot {

/// Options for how a job runs, not for its output.
struct JobOptions {
  /// Set by the flags; threads: 0 for every processor. Who runs the job adds stamps, the inspection
  /// before anything is published, and receivers of progress.
  convert::ExecuteOptions execute;
  std::string output, mem_limit = "4GiB", hash = "xxh3";
  std::optional<std::size_t> n_worst;  ///< tensors in the report: at least 20
  bool buffered = false;
  const FlagTable* table = nullptr;  ///< table that has these flags, and the settings of the run
};

void declare_job_options(FlagTable& table, JobOptions& options);
/// The gates of a comparison, --thresholds and --require; `idle`: their FlagRule::idle.
void declare_gates(FlagTable& table, std::filesystem::path& thresholds,
                   std::vector<std::string>& requirements,
                   const std::function<std::string_view()>& idle = {});

/// How a plan is executed by these options, in this process.
convert::ExecuteOptions execution(const JobOptions& options);

}  // namespace ingot
