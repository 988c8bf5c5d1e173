#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "cli/commands/commands.h"
#include "cli/commands/job.h"
#include "cli/commands/launch.h"
#include "cli/commands/measurement.h"
#include "cli/terminal/answer.h"
#include "cli/terminal/terminal.h"
#include "convert/plan/job_part.h"
#include "formats/base/error.h"
#include "formats/base/stop_scope.h"
#include "formats/json/json.h"
#include "library/options/settings.h"
#include "report/report_file.h"
#include "verify/part_report.h"
#include "verify/verification.h"

namespace ingot::cli {
namespace {

struct VerifyFlags : MeasurementFlags {
  RankFlags ranks;
  std::string source, output, part;
  std::vector<std::string> others, reports;  ///< positionals after the two; --reports
  bool join = false;
};

// True if an option is about the run, and not about what is compared, and how.
bool is_about_run(const FlagTable::Row& row) {
  return row.group == FlagGroup::kJob || row.group == FlagGroup::kReport;
}

// Takes the settings of the parts' comparison, and the run's own, and joins the reports by them. A
// report may come from anywhere: it names no file to write.
int run_join(const VerifyFlags& flags, const FlagTable& table) {
  formats::Json reports = formats::Json::array(), settings;
  std::vector<std::filesystem::path> paths = {flags.source};
  if (!flags.output.empty()) paths.emplace_back(flags.output);
  paths.insert(paths.end(), flags.others.begin(), flags.others.end());
  for (const std::filesystem::path& path : paths) reports.push_back(path.string());
  settings = *verify::join_parts(paths).settings;
  for (const FlagTable::Row& row : table.rows) {
    const std::string key(key_of(row.flag));
    if (is_about_run(row)) {
      if (settings.contains(key))
        throw Error(ErrorCode::kCorrupt, "part.settings: {} is no option of a comparison", key)
            .in_file(paths.front().string());
      settings[key] = formats::json_member(*table.settings, key);
    } else if (table.is_given(row.flag.name) && !is_positional(row.flag)) {
      refuse_idle(row.flag.name, "the command of the parts");
    }
  }
  settings.update({{"join", nullptr}, {"reports", std::move(reports)}});
  const DeclaredCommand declared = declare_command(*find_command("verify"));
  take_settings(settings, *declared.table);
  return declared.run();
}

// The settings of a part, which its join takes.
formats::Json settings_of_comparison(const FlagTable& table) {
  formats::Json settings = absolute_settings(table);
  for (const FlagTable::Row& row : table.rows)
    if (is_about_run(row)) settings.erase(std::string(key_of(row.flag)));
  return settings;
}

// Throws for options that a part cannot take.
void require_shareable(const verify::VerificationOptions& options, bool is_pair) {
  const bool is_shared = std::ranges::all_of(options.levels, [](verify::Level level) {
    return level == verify::Level::kStructure || level == verify::Level::kWeights;
  });
  if (is_pair && is_shared && options.text.empty()) return;
  throw Error(ErrorCode::kInvalidArgument,
              "parts share the comparison of two checkpoints at the levels structure and weights; "
              "run other levels, and --text, by themselves");
}

// Compares the whole output, or is one of the ranks that run it.
int run_comparison(const VerifyFlags& flags, const FlagTable& table, const RunningRank& self) {
  verify::VerificationOptions options = measurement(flags);
  const std::string source = verified_source(flags.source, flags, options);
  options.threads = self.share(options.threads, flags.options.threads != 0);
  const StopScope stop = stop_at_signals("checkpoints were compared");
  if (self.is_rank) {
    if (flags.output.empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "ranks run the comparison of two checkpoints (--mpi never lets each process work "
                  "by itself)");
    }
    options.ranks = &self.comm;
    options.mem_limit = std::max<std::uint64_t>(options.mem_limit / self.n_sharing_given, 1);
    options.output_name =
        std::filesystem::absolute(flags.output).lexically_normal().filename().string();
  }
  if (!self.is_first()) {
    verify::follow_verification(self.directory, options);
    return kExitDone;
  }
  Progress progress(flags.progress, "headers and structure");
  options.progress = stages_of(progress);
  verify::PartLedger own;
  std::optional<verify::JoinedParts> parts;
  if (!flags.part.empty()) {
    require_shareable(options, !flags.output.empty());
    const convert::JobPart part = convert::parse_job_part(flags.part);
    own.hashes.share = own.weights.share = {.index = part.index, .n = part.n};
    options.ledger = &own;
  }
  if (!flags.reports.empty()) {
    require_shareable(options, !flags.output.empty());
    parts = verify::join_parts(
        std::vector<std::filesystem::path>(flags.reports.begin(), flags.reports.end()));
    options.ledger = &parts->ledger;
  }
  const verify::Report report = flags.output.empty()
                                    ? verify::verify_single(source, options)
                                    : verify::verify_pair(source, self.directory, options);
  progress.finish();
  notes() << progress.summary(options.threads);
  if (parts) parts->require_of(report, options);
  if (!flags.part.empty()) {
    answer().is_json = true;
    answer().add(verify::part_json(report, options, settings_of_comparison(table)));
    return kExitDone;
  }
  // First where no disk can be full.
  if (answer().is_json) {
    answer().add(verify::report_json(report, json_worst(flags)));
    if (const auto shares = progress.limit_shares(options.threads); !shares.empty())
      answer().add({{"limits", limits_json(shares)}});
  } else {
    out() << verify::report_text(report, flags.n_worst, report_width());
  }
  if (!flags.html.empty())
    write_report_file(flags.html, verify::report_html(report), ReportForm::kPage);
  if (!flags.markdown.empty())
    write_report_file(flags.markdown, verify::report_markdown(report), ReportForm::kMarkdown);
  notes() << progress.limits(options.threads);
  if (!report.was_read) return kExitTrouble;
  return report.passed() ? kExitDone : kExitBelowThreshold;
}

int run_verify(const VerifyFlags& flags, const FlagTable& table) {
  if (flags.join) return run_join(flags, table);
  if (!flags.others.empty())
    throw Error(ErrorCode::kInvalidArgument, "more than two checkpoints (reports go with --join)");
  return run_ranks(flags.ranks, flags.output.empty() ? flags.source : flags.output,
                   [&](const RunningRank& self) { return run_comparison(flags, table, self); });
}

}  // namespace

std::function<int()> declare_verify(FlagTable& table) {
  auto flags = std::make_shared<VerifyFlags>();
  const auto is_pair = [flags = flags.get()] { return !flags->output.empty() || flags->join; };
  table.add(
      FlagGroup::kCommon,
      {required("source", &flags->source,
                "the checkpoint that is right (or the only one); may be one .safetensors file, or "
                "the recipe of ingot compose",
                ValueKind::kCheckpointOrFile),
       {"output",
        &flags->output,
        "the checkpoint made of it, in any format, dialect and slicing",
        {.kind = ValueKind::kCheckpointOrFile}},
       {"more", &flags->others, "with --join: more reports of parts", {.kind = ValueKind::kFile}}});
  declare_verification(table, *flags, is_pair);
  table.add(FlagGroup::kJob,
            {{"--part",
              &flags->part,
              "compare only part I of N of the weights, I from 0, and print a report of the part, "
              "which is to be joined",
              {.value_name = "I/N"}},
             {"--join", &flags->join,
              "join the reports of all parts, given in place of the checkpoints, to the one report "
              "of an undivided run, and judge it"},
             {"--reports",
              &flags->reports,
              "the report of a part, for a command that is given whole; may be repeated",
              {.excludes = {"--part", "--join"}, .kind = ValueKind::kFile}}});
  declare_measurement_report(table, *flags);
  declare_rank_flags(table, flags->ranks);
  table.footer =
      "Examples:\n"
      "  ingot verify DeepSeek-V3.2 DeepSeek-V3.2-int8                        structure and every "
      "weight\n"
      "  ingot verify DeepSeek-V3.2 DeepSeek-V3.2-nvfp4-tp8 --levels all --html report.html\n"
      "  mpirun -n 16 ingot verify DeepSeek-V3.2 OUT-tp8-ep16 --levels layers,greedy\n"
      "  ingot verify IN OUT --part 0/4 --json > part0.json                   a quarter of the "
      "weights\n"
      "  ingot verify --join part0.json part1.json part2.json part3.json      judges all four\n"
      "  ingot verify IN OUT --levels layers --require 'layers.cosine>=0.999'\n"
      "  ingot verify DeepSeek-V3.2-int8 --text wiki.txt                      perplexity\n"
      "  ingot verify DeepSeek-V3.2 --reference recorded.safetensors          against another "
      "runtime\n"
      "Exit code 0 when every gate is passed, 1 when one is not, 2 when something could not be "
      "done.";
  return [flags, &table] { return run_verify(*flags, table); };
}

}  // namespace ingot::cli
