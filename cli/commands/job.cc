#include "cli/commands/job.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <fstream>
#include <iostream>
#include <iterator>
#include <optional>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include "cli/commands/commands.h"
#include "cli/flags/flag_table.h"
#include "cli/report/convert_report.h"
#include "cli/report/error_json.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/terminal.h"
#include "convert/convert.h"
#include "convert/job/claim.h"
#include "convert/job/job_identity.h"
#include "convert/output/output_directory.h"
#include "formats/base/parallel.h"

namespace ingot::cli {

namespace {

// Enough to know a command by.
constexpr std::size_t kMaxCommandBytes = 200;

// Files of /proc have no length; what cannot be read is empty.
std::string text_of(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string command() {
  std::string words = text_of("/proc/self/cmdline");
  while (!words.empty() && words.back() == '\0') words.pop_back();
  std::replace(words.begin(), words.end(), '\0', ' ');
  if (words.size() <= kMaxCommandBytes) return words;
  return words.substr(0, kMaxCommandBytes) + " ...";
}

/// This process, as another run that wants the same output will read of it.
convert::RunName this_run() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host.front() = '\0';
  std::string boot = text_of("/proc/sys/kernel/random/boot_id");
  if (!boot.empty() && boot.back() == '\n') boot.pop_back();
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  return {.host = host.data(),
          .boot = std::move(boot),
          .pid = static_cast<std::uint64_t>(::getpid()),
          .started = fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(now)),
          .command = command()};
}

constexpr std::size_t kJsonWorst = 20;

// An append-only log, flushed line by line, so that a kill loses nothing.
std::shared_ptr<spdlog::logger> open_log(const std::string& path) {
  if (path.empty()) return nullptr;
  try {
    auto logger = std::make_shared<spdlog::logger>(
        "ingot", std::make_shared<spdlog::sinks::basic_file_sink_mt>(path));
    logger->flush_on(spdlog::level::trace);
    return logger;
  } catch (const spdlog::spdlog_ex& failure) {
    throw Error(ErrorCode::kIo, fmt::format("cannot open the log: {}", failure.what()))
        .in_file(path);
  }
}

convert::ExecuteOptions execution(const Job& job) {
  const JobFlags& flags = job.flags;
  return {.run = this_run(),
          .stamps = job.stamps,
          .threads = threads_of(flags.threads),
          .mem_limit = parse_size(flags.mem_limit, "--mem-limit"),
          .resume = flags.resume,
          .force = flags.force,
          .consume_source = flags.consume_source,
          .sha256 = flags.hash == "sha256",
          .direct_io = !flags.buffered,
          .read_back = flags.read_back,
          .follow_links = flags.follow_links,
          .n_worst = std::max<std::size_t>(flags.n_worst.value_or(0), kJsonWorst),
          .inspect = job.inspect,
          .gate = job.gate,
          .no_verify = job.no_verify};
}

// What a run refuses although the plan stands: the disk, or the job that it would continue.
std::optional<Error> refusal_of_start(const Job& job, const convert::Preflight& checked) {
  try {
    convert::require_space(job.plan, checked, job.flags.output);
    if (checked.is_finished || checked.earlier) {
      convert::require_resumable(job.plan, job.flags.output, checked,
                                 {.n = threads_of(job.flags.threads)});
    }
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

int run_dry(const Job& job) {
  const JobFlags& flags = job.flags;
  convert::Preflight checked = convert::preflight(job.plan, flags.output, execution(job));
  if (!flags.assume_disk.empty())
    checked.disk.free_bytes = parse_size(flags.assume_disk, "--assume-disk");
  const std::optional<Error> refusal = refusal_of_start(job, checked);
  const DryRun dry_run{
      .plan = job.plan, .checked = checked, .is_assumed = !flags.assume_disk.empty()};
  if (flags.json) {
    formats::Json document = dry_run_json(dry_run);
    document["refused"] = refusal.has_value();
    if (refusal) document["error"] = error_json(*refusal);
    std::cout << formats::json_text(document);
    return refusal ? kExitTrouble : kExitDone;
  }
  std::cout << dry_run_text(dry_run, flags.n_worst.has_value());
  if (refusal) throw Error(*refusal);
  return kExitDone;
}

}  // namespace

void declare_worst(FlagTable& table, std::optional<std::size_t>& n_worst) {
  table.add(FlagGroup::kReport,
            {{"--worst", &n_worst,
              "print so many of the worst tensors, and every other line (default: 5, and at most "
              "40 lines in all)"}});
}

void declare_job(FlagTable& table, JobFlags& flags) {
  table.add(
      FlagGroup::kCommon,
      {{"--dry-run", &flags.dry_run, "print the plan and write nothing; refuses what a run would"},
       {"--resume", &flags.resume, "continue a stopped conversion"},
       {"--force", &flags.force, "replace the checkpoint that is in the output"}});
  table.add(
      FlagGroup::kJob,
      {{"--mem-limit", &flags.mem_limit, "memory budget"},
       threads_flag(&flags.threads),
       {"--assume-disk",
        &flags.assume_disk,
        "plan for a host with so much free disk, e.g. 2TB",
        {.needs = "--dry-run"}},
       {"--hash",
        &flags.hash,
        "xxh3 per tensor; sha256 adds a plain SHA-256 per file, in a second pass",
        {.choices = {"xxh3", "sha256"}}},
       {"--consume-source", &flags.consume_source,
        "delete each source file once its tensors are safe"},
       {"--buffered", &flags.buffered, "write through the page cache even where direct I/O works"},
       {"--read-back", &flags.read_back,
        "read everything again from the disk, past the page cache, before it is published"},
       {"--follow-links", &flags.follow_links,
        "copy side files that are links to something outside the source"}});
  declare_worst(table, flags.n_worst);
  table.add(FlagGroup::kReport, {{"--log", &flags.log_file, "append a line per event to this file"},
                                 progress_flag(&flags.progress),
                                 json_flag(&flags.json)});
}

int run_job(const Job& job) {
  if (job.flags.dry_run) return run_dry(job);

  const JobFlags& flags = job.flags;
  const convert::Plan& plan = job.plan;
  convert::ExecuteOptions execute = execution(job);
  const std::shared_ptr<spdlog::logger> log = open_log(flags.log_file);
  Progress progress(flags.progress, job.verb);
  install_stop_signals();
  execute.accepted = [&] { std::cerr << remarks_text(plan, flags.n_worst.has_value()); };
  execute.progress = [&](std::uint64_t done, std::uint64_t total) { progress.update(done, total); };
  execute.stop_requested = stop_requested;
  execute.log = [&](const std::string& line) {
    if (log) log->info(line);
  };
  const convert::ExecuteReport report = convert::execute(plan, flags.output, execute);
  progress.finish();
  if (report.refused && (report.already_done || report.only_published)) {
    std::cerr << "the output was finished before, and stays as it is\n";
    return kExitBelowThreshold;
  }
  if (report.refused) {
    std::cerr << fmt::format(
        "nothing was published; what was made is in {} (see it with --resume and other gates, or "
        "remove it)\n",
        convert::OutputPaths(flags.output).staged.string());
    return kExitBelowThreshold;
  }
  std::cout << (flags.json ? formats::json_text(report_json(plan, report))
                           : report_text(plan, report, flags.n_worst));
  return kExitDone;
}

}  // namespace ingot::cli
