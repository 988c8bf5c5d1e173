#include "cli/commands/job.h"

#include <algorithm>
#include <optional>
#include <ostream>

#include <fmt/format.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>

#include "cli/commands/commands.h"
#include "cli/report/convert_report.h"
#include "cli/terminal/answer.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/session.h"
#include "cli/terminal/terminal.h"
#include "convert/convert.h"
#include "convert/job/job_identity.h"
#include "convert/output/output_directory.h"
#include "convert/output/version.h"
#include "convert/run/band_encoder.h"
#include "formats/base/parallel.h"
#include "formats/base/stop_scope.h"
#include "library/options/flag_table.h"
#include "library/plan_json.h"
#include "report/report_file.h"

namespace ingot::cli {

namespace {

// An append-only log, flushed line by line, so that a kill loses nothing.
std::shared_ptr<spdlog::logger> open_log(const std::string& path) {
  if (path.empty()) return nullptr;
  try {
    auto logger = std::make_shared<spdlog::logger>(
        "ingot", std::make_shared<spdlog::sinks::basic_file_sink_mt>(path));
    logger->flush_on(spdlog::level::trace);
    return logger;
  } catch (const spdlog::spdlog_ex&) {
    throw Error(ErrorCode::kIo, "cannot be opened as the log (may its folder be written to?)")
        .in_file(path);
  }
}

// Why a run would refuse a sound plan: the disk, or the job that it would continue.
std::optional<Error> refusal_of_start(const JobFlags& flags, const convert::Plan& plan,
                                      const convert::Preflight& checked) {
  try {
    convert::require_space(plan, checked, flags.output);
    if (checked.is_finished || checked.earlier) {
      convert::require_resumable(plan, flags.output, checked, threads_of(flags.execute.threads));
    }
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

int run_dry(const JobFlags& flags, const convert::Plan& plan) {
  convert::Preflight checked = convert::preflight(plan, flags.output, execution(flags));
  if (!flags.assume_disk.empty())
    checked.disk.free_bytes = parse_size(flags.assume_disk, "--assume-disk");
  const std::optional<Error> refusal = refusal_of_start(flags, plan, checked);
  // Figures of this machine, of this moment: for people, not for programs that compare.
  std::optional<convert::TimeEstimate> time;
  if (!answer().is_json && !refusal && !checked.is_finished)
    time = convert::estimate_time(plan, flags.output, checked.memory.threads);
  const DryRun dry_run{.plan = plan,
                       .checked = checked,
                       .output = flags.output,
                       .is_assumed = !flags.assume_disk.empty(),
                       .time = time};
  if (answer().is_json) {
    answer().add(dry_run_json(dry_run));
    if (!session().is_of_program) {
      const formats::Json tensors = library::plan_json(plan);
      answer().add({{"config", tensors["config"]}, {"tensors", tensors["tensors"]}});
    }
  } else {
    out() << dry_run_text(dry_run, flags.n_worst.has_value());
  }
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
  table.add(FlagGroup::kCommon, {{"--dry-run", &flags.dry_run,
                                  "print the plan and write nothing; refuses what a run would"}});
  declare_job_options(table, flags);
  table.add(FlagGroup::kJob, {{"--assume-disk",
                               &flags.assume_disk,
                               "plan for a host with so much free disk, e.g. 2TB",
                               {.needs = "--dry-run", .kind = ValueKind::kSize}}});
  declare_worst(table, flags.n_worst);
  table.add(FlagGroup::kReport, {{"--log",
                                  &flags.log_file,
                                  "append a line per event to this file",
                                  {.kind = ValueKind::kFile, .is_written = true}},
                                 progress_flag(&flags.progress),
                                 json_flag(&answer().is_json)});
}

bool is_done_without_source(const JobFlags& flags, const convert::NamedSource& source,
                            const convert::Recipe& recipe, const convert::PlanOptions& options) {
  if (!convert::is_done_without_source(source, flags.output, recipe, options, execution(flags)))
    return false;
  if (answer().is_json) {
    answer().add({{"already_done", true}, {"published", true}});
  } else {
    out() << kAlreadyFinished << "\n";
  }
  return true;
}

int run_job(const JobFlags& flags, std::string_view verb, const convert::Plan& plan) {
  require_report_place(flags.log_file, ReportForm::kEventLog);
  if (!flags.is_of_launch) answer().add({{"warnings", warnings_json(plan)}});
  if (flags.dry_run) return run_dry(flags, plan);
  convert::ExecuteOptions execute = execution(flags);
  const std::shared_ptr<spdlog::logger> log = open_log(flags.log_file);
  Progress progress(flags.is_of_launch ? "never" : flags.progress,
                    session().is_of_program ? verb : "");
  execute.accepted = [&] {
    if (!flags.is_of_launch) notes() << remarks_text(plan, flags.n_worst.has_value());
  };
  execute.progress = [&](std::uint64_t done, std::uint64_t total) {
    progress.update(done, total);
    if (flags.execute.progress) flags.execute.progress(done, total);
  };
  execute.phase = [&](std::string_view name) { progress.begin(name); };
  execute.log = [&](const std::string& line) {
    if (log) log->info(line);
  };
  convert::ExecuteReport report;
  try {
    const StopScope stop = stop_at_signals(convert::kStoppable);
    report = convert::execute(plan, flags.output, execute);
  } catch (const convert::ValueLost& lost) {
    progress.finish();
    const std::string partial = convert::OutputPaths(flags.output).partial.string();
    answer().end_by(lost);
    session().refusal = lost;
    answer().add({{"passed", false}, {"published", false}, {"unfinished", partial}});
    errors() << fmt::format(
        "{}\nnothing was published; the unfinished output is in {} (remove it)\n", lost.what(),
        partial);
    return kExitBelowThreshold;
  }
  progress.finish();
  notes() << progress.summary(report.memory.threads);
  if (answer().is_json && !flags.is_of_launch)
    answer().add(report_json(plan, report, flags.output));
  if (report.refused && (report.already_done || report.only_published)) {
    errors() << "the output was finished before, and stays as it is\n";
    return kExitBelowThreshold;
  }
  if (report.refused) {
    const std::string staged = convert::OutputPaths(flags.output).staged.string();
    answer().add({{"unfinished", staged}});
    errors() << fmt::format(
        "nothing was published; the output is in {} (verify it with --resume and other gates, or "
        "remove it)\n",
        staged);
    return kExitBelowThreshold;
  }
  if (!flags.is_of_launch && !answer().is_json)
    out() << report_text(plan, report, flags.output, flags.n_worst);
  return kExitDone;
}

}  // namespace ingot::cli
