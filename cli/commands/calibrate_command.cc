#include <memory>
#include <ostream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/commands/commands.h"
#include "cli/flags/calibration_text.h"
#include "cli/terminal/answer.h"
#include "cli/terminal/terminal.h"
#include "convert/output/version.h"
#include "formats/base/error.h"
#include "formats/json/json.h"
#include "library/options/flag_table.h"
#include "report/figures.h"
#include "verify/calibrate/calibrate.h"
#include "verify/outputs/prompts.h"

namespace ingot::cli {
namespace {

using formats::Json;
using verify::CalibrationReport;

struct CalibrateFlags : CalibrationFlags {
  std::string out;
};

std::string report_text(const CalibrateFlags& flags, const CalibrationReport& report) {
  std::string text = fmt::format("{}: inputs of {} modules over {} tokens in {} context window{}\n",
                                 flags.out, count_text(report.modules), count_text(report.tokens),
                                 count_text(report.documents), report.documents == 1 ? "" : "s");
  for (const verify::UnvisitedExperts& unvisited : report.unvisited) {
    text += fmt::format(
        "layer {}: no token reached expert{} {}; filled with the maximum over the others (give "
        "more text)\n",
        unvisited.layer, unvisited.experts.size() == 1 ? "" : "s",
        fmt::join(unvisited.experts, ", "));
  }
  return text;
}

Json report_json(const CalibrateFlags& flags, const CalibrationReport& report) {
  const auto unvisited_json = [](const verify::UnvisitedExperts& unvisited) -> Json {
    return {{"layer", unvisited.layer}, {"experts", unvisited.experts}};
  };
  return {{"output", flags.out},
          {"documents", report.documents},
          {"tokens", report.tokens},
          {"modules", report.modules},
          {"unvisited", formats::json_list(report.unvisited, unvisited_json)}};
}

int run_calibrate(const CalibrateFlags& flags) {
  const formats::Checkpoint source = open_source(flags);
  CalibrationReport report;
  read_text(flags, source, "calibrating layers",
            [&](std::span<const verify::Prompt> documents, const verify::RunOptions& options) {
              report = verify::calibrate(source, documents, flags.out, options);
            });
  if (answer().is_json) {
    answer().add(report_json(flags, report));
  } else {
    out() << report_text(flags, report);
  }
  return kExitDone;
}

}  // namespace

std::function<int()> declare_calibrate(FlagTable& table) {
  auto flags = std::make_shared<CalibrateFlags>();
  table.add(FlagGroup::kCommon,
            {required("directory", &flags->directory, kDirectoryHelp, ValueKind::kCheckpoint),
             text_flag(*flags),
             required_output("--out", &flags->out, "safetensors file to write; must be absent",
                             ValueKind::kFile),
             max_tokens_flag(*flags)});
  add_source_and_job(table, *flags);
  table.add(FlagGroup::kReport, {progress_flag(&flags->progress), json_flag(&answer().is_json)});
  table.footer =
      "Examples:\n"
      "  ingot calibrate DeepSeek-V3.2 --text sample.json --out statistics.safetensors\n"
      "  ingot convert DeepSeek-V3.2 OUT --to nvfp4 --importance statistics.safetensors\n"
      "  ingot convert DeepSeek-V3.2 OUT --to int8 --dialect modelslim --activations static "
      "--activation-scales statistics.safetensors";
  return [flags] { return run_calibrate(*flags); };
}

}  // namespace ingot::cli
