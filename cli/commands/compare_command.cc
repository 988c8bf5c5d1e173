#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands/commands.h"
#include "cli/commands/measurement.h"
#include "cli/terminal/answer.h"
#include "cli/terminal/terminal.h"
#include "formats/base/stop_scope.h"
#include "report/report_file.h"
#include "verify/compare/comparison.h"
#include "verify/verification.h"

namespace ingot::cli {
namespace {

struct CompareFlags : MeasurementFlags {
  verify::ComparedDirectories directories;
  std::vector<std::string> demands;
};

int run_compare(const CompareFlags& flags) {
  verify::VerificationOptions options = measurement(flags);
  verify::ComparedDirectories directories = flags.directories;
  if (!directories.reference.empty())
    directories.reference = verified_source(directories.reference.string(), flags, options);
  std::vector<verify::Demand> demands;  // before hours of work
  for (const std::string& text : flags.demands) demands.push_back(verify::parse_demand(text));
  const StopScope stop = stop_at_signals("checkpoints were compared");
  Progress progress(flags.progress, "headers and structure");
  options.progress = stages_of(progress);
  verify::Comparison comparison = verify::compare_outputs(directories, options);
  comparison.demands = std::move(demands);
  progress.finish();
  notes() << progress.summary(options.threads);
  // First where no disk can be full.
  if (answer().is_json) {
    answer().add(verify::comparison_json(comparison, json_worst(flags)));
  } else {
    out() << verify::comparison_text(comparison, flags.n_worst, report_width());
  }
  if (!flags.html.empty())
    write_report_file(flags.html, verify::comparison_html(comparison), ReportForm::kPage);
  if (!flags.markdown.empty()) {
    write_report_file(flags.markdown, verify::comparison_markdown(comparison),
                      ReportForm::kMarkdown);
  }
  return comparison.passed() ? kExitDone : kExitBelowThreshold;
}

}  // namespace

std::function<int()> declare_compare(FlagTable& table) {
  auto flags = std::make_shared<CompareFlags>();
  verify::ComparedDirectories& directories = flags->directories;
  table.add(
      FlagGroup::kCommon,
      {required("a", &directories.a, "an output, in any format, dialect and slicing",
                ValueKind::kCheckpoint),
       required("b", &directories.b, "another output of the same source", ValueKind::kCheckpoint),
       {"--reference",
        &directories.reference,
        "the source of both, or the recipe of ingot compose that names it: each is held against "
        "it, and the differences are paired",
        {.kind = ValueKind::kCheckpointOrFile}},
       levels_flag(*flags)});
  const auto with_reference = belongs_to(
      "--reference", [flags = flags.get()] { return !flags->directories.reference.empty(); });
  table.add(
      FlagGroup::kComparison,
      {{"--require",
        &flags->demands,
        "A is no worse than B: METRIC<=B, or METRIC>=B where more is better, by the bad end of "
        "the 95% interval; B+MARGIN, B-MARGIN allow some; may be repeated",
        {.words = words_of(verify::metrics(), &verify::Metric::name),
         .words_begin = true,
         .idle = with_reference}}});
  table.add(FlagGroup::kSource,
            {family_flag(&flags->options.family, kFamilyHelp),
             family_file_flag(&flags->options.family),
             {"--a-config",
              &directories.a_config,
              "config.json of A, for shards without one",
              {.kind = ValueKind::kFile}},
             {"--b-config", &directories.b_config, "the same of B", {.kind = ValueKind::kFile}},
             {"--reference-config",
              &directories.reference_config,
              "the same of the reference",
              {.kind = ValueKind::kFile, .idle = with_reference}}});
  declare_source_changes(table, *flags, with_reference);
  declare_measurement_options(table, *flags, [] { return true; });
  declare_measurement_report(table, *flags);
  table.footer =
      "Examples:\n"
      "  ingot compare OUT-int8 OUT-nvfp4 --reference DeepSeek-V3.2          whose weights are "
      "closer\n"
      "  ingot compare VENDOR-nvfp4 OUT-nvfp4 --reference DeepSeek-V3.2 --levels all --text "
      "wiki.txt \\\n"
      "      --html compare.html\n"
      "  ingot compare NEW OLD --reference DeepSeek-V3.2 --levels structure --text docs.jsonl \\\n"
      "      --require 'text.kl<=B+1e-5'                               is NEW no worse than OLD\n"
      "  ingot compare VENDOR-nvfp4 OUT-nvfp4                                how far they are "
      "apart\n"
      "Without --require nothing is judged: exit code 0 when both were compared, 1 when a demand "
      "does not hold, 2 when something could not be done. The gate of one output is ingot verify.";
  return [flags] { return run_compare(*flags); };
}

}  // namespace ingot::cli
