#include "cli/job_option.h"

#include <algorithm>
#include <iostream>
#include <optional>

#include <fmt/format.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>

#include "cli/commands.h"
#include "cli/convert_report.h"
#include "cli/error_json.h"
#include "cli/flag_table.h"
#include "cli/progress.h"
#include "cli/run_name.h"
#include "cli/size_option.h"
#include "cli/terminal.h"
#include "convert/convert.h"
#include "convert/output/output_directory.h"
#include "formats/base/parallel.h"
#include "formats/json/json.h"

namespace ingot::cli {

namespace {

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

// How the words say that a plan is executed.
convert::ExecuteOptions execution(const JobWords& words, JobExtras extras) {
  return {.run = this_run(),
          .stamps = std::move(extras.stamps),
          .threads = words.n_threads(),
          .mem_limit = parse_size(words.mem_limit, "--mem-limit"),
          .resume = words.resume,
          .force = words.force,
          .consume_source = words.consume_source,
          .sha256 = words.hash == "sha256",
          .direct_io = !words.buffered,
          .read_back = words.read_back,
          .follow_links = words.follow_links,
          .n_worst = std::max<std::size_t>(words.n_worst.value_or(0), kJsonWorst),
          .inspect = std::move(extras.inspect),
          .gate = std::move(extras.gate),
          .no_verify = extras.no_verify};
}

// What a run refuses although the plan stands: the disk, or the job that it would continue.
std::optional<Error> refusal_of_start(const JobWords& words, const convert::Plan& plan,
                                      const convert::Preflight& checked) {
  try {
    convert::require_space(plan, checked, words.output);
    if (checked.is_finished || checked.earlier) {
      convert::require_resumable(plan, words.output, checked, {.n = words.n_threads()});
    }
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

int run_dry(const JobWords& words, const convert::Plan& plan,
            const convert::ExecuteOptions& execute) {
  convert::Preflight checked = convert::preflight(plan, words.output, execute);
  if (!words.assume_disk.empty())
    checked.disk.free_bytes = parse_size(words.assume_disk, "--assume-disk");
  const std::optional<Error> refusal = refusal_of_start(words, plan, checked);
  const DryRun dry_run{.plan = plan, .checked = checked, .is_assumed = !words.assume_disk.empty()};
  if (words.json) {
    formats::Json document = dry_run_json(dry_run);
    document["refused"] = refusal.has_value();
    if (refusal) document["error"] = error_json(*refusal);
    std::cout << formats::json_text(document);
    return refusal ? kExitTrouble : kExitDone;
  }
  std::cout << dry_run_text(dry_run, words.n_worst.has_value());
  if (refusal) throw Error(*refusal);
  return kExitDone;
}

}  // namespace

std::size_t JobWords::n_threads() const {
  return threads == 0 ? available_processors() : threads;
}

void declare_worst(FlagTable& table, std::optional<std::size_t>& n_worst) {
  table.add(FlagGroup::kReport,
            {{"--worst", &n_worst,
              "print so many of the worst tensors, and every other line (default: 5, and at most "
              "40 lines in all)"}});
}

void declare_job(FlagTable& table, JobWords& words) {
  table.add(
      FlagGroup::kCommon,
      {{"--dry-run", &words.dry_run, "print the plan and write nothing; refuses what a run would"},
       {"--resume", &words.resume, "continue a stopped conversion"},
       {"--force", &words.force, "replace the checkpoint that is in the output"}});
  table.add(
      FlagGroup::kJob,
      {{"--mem-limit", &words.mem_limit, "memory budget"},
       {"--threads", &words.threads, kThreadsHelp, {.range = kThreadRange}},
       {"--assume-disk",
        &words.assume_disk,
        "plan for a host with so much free disk, e.g. 2TB",
        {.needs = "--dry-run"}},
       {"--hash",
        &words.hash,
        "xxh3 per tensor; sha256 adds a plain SHA-256 per file, in a second pass",
        {.choices = {"xxh3", "sha256"}}},
       {"--consume-source", &words.consume_source,
        "delete each source file once its tensors are safe"},
       {"--buffered", &words.buffered, "write through the page cache even where direct I/O works"},
       {"--read-back", &words.read_back,
        "read everything again from the disk, past the page cache, before it is published"},
       {"--follow-links", &words.follow_links,
        "copy side files that are links to something outside the source"}});
  declare_worst(table, words.n_worst);
  table.add(FlagGroup::kReport, {{"--log", &words.log_file, "append a line per event to this file"},
                                 {"--progress",
                                  &words.progress,
                                  "progress on stderr",
                                  {.choices = {"auto", "always", "never"}}},
                                 {"--json", &words.json, kJsonHelp}});
}

int run_job(const JobWords& words, std::string_view verb, const convert::Plan& plan,
            JobExtras extras) {
  convert::ExecuteOptions execute = execution(words, std::move(extras));
  if (words.dry_run) return run_dry(words, plan, execute);

  const std::shared_ptr<spdlog::logger> log = open_log(words.log_file);
  Progress progress(words.progress, std::string(verb));
  install_stop_signals();
  execute.accepted = [&] { std::cerr << remarks_text(plan, words.n_worst.has_value()); };
  execute.progress = [&](std::uint64_t done, std::uint64_t total) { progress.update(done, total); };
  execute.stop_requested = stop_requested;
  execute.log = [&](const std::string& line) {
    if (log) log->info(line);
  };
  const convert::ExecuteReport report = convert::execute(plan, words.output, execute);
  progress.finish();
  if (report.refused && (report.already_done || report.only_published)) {
    std::cerr << "the output was finished before, and stays as it is\n";
    return kExitBelowThreshold;
  }
  if (report.refused) {
    std::cerr << fmt::format(
        "nothing was published; what was made is in {} (see it with --resume and other gates, or "
        "remove it)\n",
        convert::OutputPaths(words.output).staged.string());
    return kExitBelowThreshold;
  }
  std::cout << (words.json ? formats::json_text(report_json(plan, report))
                           : report_text(plan, report, words.n_worst));
  return kExitDone;
}

}  // namespace ingot::cli
