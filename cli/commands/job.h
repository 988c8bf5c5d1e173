#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "convert/convert.h"
#include "convert/job/execute.h"

namespace ingot::cli {

class FlagTable;

/// Flags that say how a job runs, not what it makes.
struct JobFlags {
  std::string output, mem_limit = "4GiB", hash = "xxh3", log_file, progress = "auto";
  std::string assume_disk;
  std::size_t threads = 0;
  std::optional<std::size_t> n_worst;
  bool dry_run = false, resume = false, force = false, consume_source = false;
  bool buffered = false, read_back = false, follow_links = false, json = false;
};

void declare_job(FlagTable& table, JobFlags& flags);
/// `--worst N`: how much a report prints.
void declare_worst(FlagTable& table, std::optional<std::size_t>& n_worst);

/// A planned conversion to be carried out; fields without a word are those of
/// convert::ExecuteOptions.
struct Job {
  const JobFlags& flags;
  std::string_view verb;  ///< "converting"
  const convert::Plan& plan;
  convert::SourceStamps stamps;
  std::function<convert::Inspection(const std::filesystem::path&)> inspect = {};
  std::string gate = {};
  bool no_verify = false;
};

/// Executes a plan, or prints it when that was asked for; returns the exit code. What a run would
/// refuse by headers and options is refused in both, a plan that does not fit the disk after it was
/// printed.
int run_job(const Job& job);

}  // namespace ingot::cli
