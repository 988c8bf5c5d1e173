#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "convert/job/execute.h"
#include "convert/plan/plan.h"
#include "convert/recipe/recipe.h"

namespace ingot::cli {

class FlagTable;

/// Words that say how a job runs, not what it makes.
struct JobWords {
  std::string output, mem_limit = "4GiB", hash = "xxh3", log_file, progress = "auto";
  std::string assume_disk;
  std::size_t threads = 0;
  std::optional<std::size_t> n_worst;
  bool dry_run = false, resume = false, force = false, consume_source = false;
  bool buffered = false, read_back = false, follow_links = false, json = false;

  [[nodiscard]] std::size_t n_threads() const;
};

void declare_job(FlagTable& table, JobWords& words);
/// `--worst N`: how much a report prints.
void declare_worst(FlagTable& table, std::optional<std::size_t>& n_worst);

/// What a job has that others have not; fields as convert::ExecuteOptions has them.
struct JobExtras {
  convert::SourceStamps stamps;
  std::function<convert::Inspection(const std::filesystem::path&)> inspect = {};
  std::string gate = {};
  bool no_verify = false;
};

/// Executes a plan, or prints it when that was asked for; returns the exit code. What a run would
/// refuse by headers and options is refused in both, a plan that does not fit the disk after it was
/// printed.
int run_job(const JobWords& words, std::string_view verb, const convert::Plan& plan,
            JobExtras extras);

}  // namespace ingot::cli
