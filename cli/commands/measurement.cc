#include "cli/commands/measurement.h"

#include <algorithm>

#include "cli/commands/job.h"
#include "cli/terminal/answer.h"
#include "cli/terminal/terminal.h"
#include "report/report_file.h"

namespace ingot::cli {

void declare_measurement_report(FlagTable& table, MeasurementFlags& flags) {
  table.add(FlagGroup::kJob, {progress_flag(&flags.progress)});
  declare_worst(table, flags.n_worst);
  table.add(FlagGroup::kReport, {{"--html",
                                  &flags.html,
                                  "write the report as one self-contained page",
                                  {.kind = ValueKind::kFile, .is_written = true}},
                                 {"--markdown",
                                  &flags.markdown,
                                  "write the report for a model card",
                                  {.kind = ValueKind::kFile, .is_written = true}},
                                 json_flag(&answer().is_json)});
}

verify::VerificationOptions measurement(const MeasurementFlags& flags) {
  require_report_place(flags.html, ReportForm::kPage);
  require_report_place(flags.markdown, ReportForm::kMarkdown);
  return measurement_options(flags);
}

std::function<void(std::string_view, std::uint64_t, std::uint64_t)> stages_of(Progress& progress) {
  return [&progress](std::string_view what, std::uint64_t done, std::uint64_t total) {
    const bool counts_bytes = what.find("weights") != std::string_view::npos;
    progress.begin(what, counts_bytes ? Progress::Unit::kBytes : Progress::Unit::kSteps);
    progress.update(done, total);
  };
}

std::size_t json_worst(const MeasurementFlags& flags) {
  constexpr std::size_t kJsonWorst = 100;
  return std::max(flags.n_worst.value_or(0), kJsonWorst);
}

}  // namespace ingot::cli
