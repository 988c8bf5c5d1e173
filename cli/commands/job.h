#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "convert/convert.h"
#include "library/options/job_options.h"

namespace ingot::cli {

/// Flags for how a job runs, and for what is printed of it.
struct JobFlags : JobOptions {
  std::string log_file, progress = "auto", assume_disk;
  bool dry_run = false;
  bool is_of_launch = false;  ///< a part that another process, or a later job, speaks for
};

void declare_job(FlagTable& table, JobFlags& flags);
/// `--worst N`: how much a report prints.
void declare_worst(FlagTable& table, std::optional<std::size_t>& n_worst);

/// Says so, and returns true, when the output is finished and its source, of which no plan can be
/// made any more, was deleted for it (--consume-source, with --resume).
bool is_done_without_source(const JobFlags& flags, const convert::NamedSource& source,
                            const convert::Recipe& recipe, const convert::PlanOptions& options);

/// Executes a plan, or prints it when that was asked for; returns the exit code. Both refuse what
/// headers and options rule out; a plan that does not fit the disk is refused after it was printed.
/// `verb`: "converting".
int run_job(const JobFlags& flags, std::string_view verb, const convert::Plan& plan);

}  // namespace ingot::cli
