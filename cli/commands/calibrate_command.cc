#include <algorithm>
#include <iostream>
#include <memory>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/commands/commands.h"
#include "cli/flags/calibration_text.h"
#include "cli/flags/flag_table.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/terminal.h"
#include "convert/output/version.h"
#include "formats/base/error.h"
#include "formats/base/figures.h"
#include "formats/base/parallel.h"
#include "formats/json/json.h"
#include "shard/join/source.h"
#include "verify/calibrate/calibrate.h"
#include "verify/outputs/prompts.h"

namespace ingot::cli {
namespace {

using formats::Checkpoint;
using formats::Json;
using verify::CalibrationReport;

struct CalibrateFlags {
  std::string directory, out, family, mem_limit = "4GiB", progress = "auto";
  CalibrationText text;
  std::size_t threads = 0;
  bool json = false;
};

std::string report_text(const CalibrateFlags& flags, const CalibrationReport& report) {
  std::string text = fmt::format("{}: inputs of {} modules over {} tokens in {} window{}\n",
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
  return {{"schema", 1},
          {"command", "calibrate"},
          {"version", std::string(convert::kVersion)},
          {"output", flags.out},
          {"documents", report.documents},
          {"tokens", report.tokens},
          {"modules", report.modules},
          {"unvisited", formats::json_list(report.unvisited, unvisited_json)}};
}

int run_calibrate(const CalibrateFlags& flags) {
  const std::size_t threads = threads_of(flags.threads);
  const Checkpoint source =
      shard::open_source(flags.directory, {.open = {.family = flags.family, .threads = threads}});
  shard::require_all_ranks(source);
  notes() << remark_lines("warning", source.remarks());
  const std::vector<verify::Prompt> documents = read_calibration_text(flags.text, source);
  install_stop_signals();
  verify::RunOptions options{.threads = threads,
                             .mem_limit = parse_size(flags.mem_limit, "--mem-limit"),
                             .stop_requested = stop_requested};
  Progress progress(flags.progress, "calibrating layers", Progress::Unit::kSteps);
  options.progress = [&](std::uint64_t done, std::uint64_t all) { progress.update(done, all); };
  const CalibrationReport report = verify::calibrate(source, documents, flags.out, options);
  progress.finish();
  notes() << progress.summary(threads);
  std::cout << (flags.json ? formats::json_text(report_json(flags, report))
                           : report_text(flags, report));
  return kExitDone;
}

}  // namespace

std::function<int()> declare_calibrate(FlagTable& table) {
  auto flags = std::make_shared<CalibrateFlags>();
  table.add(FlagGroup::kCommon,
            {required("directory", &flags->directory, kDirectoryHelp, ValueKind::kFolder),
             text_flag(flags->text),
             required("--out", &flags->out, "safetensors file to write; must be absent",
                      ValueKind::kFile),
             max_tokens_flag(flags->text)});
  table.add(FlagGroup::kSource,
            {family_flag(&flags->family, "model family instead of config.json's"),
             family_file_flag(&flags->family)});
  table.add(FlagGroup::kJob, {mem_limit_flag(&flags->mem_limit), threads_flag(&flags->threads)});
  table.add(FlagGroup::kReport, {progress_flag(&flags->progress), json_flag(&flags->json)});
  table.footer =
      "Examples:\n"
      "  ingot calibrate DeepSeek-V3.2 --text sample.json --out statistics.safetensors\n"
      "  ingot convert DeepSeek-V3.2 OUT --to nvfp4 --importance statistics.safetensors\n"
      "  ingot convert DeepSeek-V3.2 OUT --to int8 --dialect modelslim --activations static "
      "--activation-scales statistics.safetensors";
  return [flags] { return run_calibrate(*flags); };
}

}  // namespace ingot::cli
