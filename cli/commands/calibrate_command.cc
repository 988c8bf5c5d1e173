#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/commands/commands.h"
#include "cli/flags/calibration_text.h"
#include "cli/terminal/answer.h"
#include "cli/terminal/terminal.h"
#include "convert/output/version.h"
#include "convert/run/memory/converted_bytes.h"
#include "formats/base/error.h"
#include "formats/container/safetensors.h"
#include "formats/json/json.h"
#include "formats/text/spelling.h"
#include "library/conversion.h"
#include "library/options/flag_table.h"
#include "library/options/target_flags.h"
#include "report/figures.h"
#include "shard/join/source.h"
#include "verify/calibrate/calibrate.h"
#include "verify/outputs/prompts.h"

namespace ingot::cli {
namespace {

using formats::Json;
using verify::CalibrationReport;

struct CalibrateFlags : CalibrationFlags {
  std::string out;
  std::string without, quantized;
  std::uint64_t shrinkage = formats::kUsualShrinkage;
  bool resume = false;
};

/// Products that --without leaves out of a directory.
struct Product {
  std::string_view word;
  bool verify::CalibrationOptions::*is_there;
};
constexpr std::array kProducts = {Product{"cache", &verify::CalibrationOptions::cache},
                                  Product{"blocks", &verify::CalibrationOptions::blocks},
                                  Product{"moments", &verify::CalibrationOptions::moments}};

bool writes_directory(const CalibrateFlags& flags) {
  return !flags.out.ends_with(formats::kWeightsSuffix);
}

void leave_out(std::string_view words, verify::CalibrationOptions& what) {
  while (!words.empty()) {
    const std::string_view word = words.substr(0, words.find(','));
    words.remove_prefix(std::min(words.size(), word.size() + 1));
    const auto* const product = std::ranges::find(kProducts, word, &Product::word);
    if (product == kProducts.end()) refuse_word("--without", word, kProducts, &Product::word);
    what.*product->is_there = false;
  }
}

// Says before the first layer how much disk is needed.
std::string need_text(const CalibrateFlags& flags, const verify::CalibrationNeed& need) {
  std::string text = fmt::format(
      "note: {} takes {}, and {} for activations until it ends; {}\n", flags.out,
      bytes_text(need.statistics), bytes_text(need.spilled),
      need.batches == 1
          ? "all documents go through a layer together"
          : fmt::format("documents go through a layer in {} batches", count_text(need.batches)));
  if (need.steps_done > 0) {
    text += fmt::format("note: an earlier run has done {} of {} layers\n",
                        count_text(need.steps_done), count_text(need.steps));
  }
  return text;
}

verify::CalibrationOptions calibration_options(const CalibrateFlags& flags) {
  verify::CalibrationOptions what;
  what.resume = flags.resume;
  what.shrinkage = flags.shrinkage;
  what.tool_version = convert::kVersion;
  leave_out(flags.without, what);
  what.announce = [&flags](const verify::CalibrationNeed& need) {
    if (need.spilled > 0) notes() << need_text(flags, need);
  };
  return what;
}

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
          {"bytes", report.n_bytes},
          {"unvisited", formats::json_list(report.unvisited, unvisited_json)}};
}

library::Conversion conversion_to(std::shared_ptr<const formats::Checkpoint> source,
                                  const CalibrateFlags& flags) {
  convert::parse_scheme_word(flags.quantized, "--quantized");
  library::ConvertOptions options;
  options.input = flags.directory;
  options.family = flags.family;
  options.target.options["--to"] = flags.quantized;
  return library::plan_conversion(options, library::read_target(options), std::move(source),
                                  threads_of(flags.threads));
}

/// The model as `convert --to SCHEME` would make it with its default options, read without being
/// written. Throws kInvalidArgument for a word that is no scheme, and as planning does.
struct ConvertedModel {
  ConvertedModel(std::shared_ptr<const formats::Checkpoint> source, const CalibrateFlags& flags)
      : conversion(conversion_to(std::move(source), flags)),
        bytes(conversion.plan, threads_of(flags.threads)),
        checkpoint(
            convert::converted_checkpoint(conversion.plan, bytes, threads_of(flags.threads))) {}

  library::Conversion conversion;
  convert::ConvertedBytes bytes;
  formats::Checkpoint checkpoint;
};

// True if a value is meant as a word of --to, not as a directory: it is such a word, or no file of
// this name is there and no slash is in it.
bool names_scheme(const std::string& value) {
  if (std::ranges::count(offered_targets(), value) > 0) return true;
  return value.find('/') == std::string::npos && !std::filesystem::exists(value);
}

int run_calibrate(CalibrateFlags& flags) {
  if (writes_directory(flags)) flags.left = "--resume continues behind the last finished layer";
  const auto opened = std::make_shared<const formats::Checkpoint>(open_source(flags));
  const formats::Checkpoint& source = *opened;
  std::optional<formats::Checkpoint> quantized;
  std::optional<ConvertedModel> converted;
  verify::CalibrationOptions what = calibration_options(flags);
  if (!flags.quantized.empty() && names_scheme(flags.quantized)) {
    shard::require_all_ranks(source);
    converted.emplace(opened, flags);
    what.quantized = &converted->checkpoint;
    what.quantized_memory = converted->bytes.memory();
  } else if (!flags.quantized.empty()) {
    quantized.emplace(shard::open_source(
        flags.quantized, {.open = {.family = flags.family, .threads = threads_of(flags.threads)}}));
    shard::require_all_ranks(*quantized);
    what.quantized = &*quantized;
  }
  CalibrationReport report;
  read_text(flags, source, "calibrating layers",
            [&](std::span<const verify::Prompt> documents, const verify::RunOptions& options) {
              report = verify::calibrate(source, documents, flags.out, options, what);
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
  table.add(
      FlagGroup::kCommon,
      {required("directory", &flags->directory, kDirectoryHelp, ValueKind::kCheckpoint),
       text_flag(*flags),
       required_output("--out", &flags->out,
                       "directory to write, or with a name in .safetensors one file with only "
                       "ranges, mean squares and counts; must be absent",
                       ValueKind::kPath),
       max_tokens_flag(*flags)});
  table.add(
      FlagGroup::kTarget,
      {{"--without",
        &flags->without,
        "leave out of the directory: cache (ranges of keys and values), blocks (second moments "
        "of 16 inputs each), moments (those of all inputs, the largest); a list",
        {.words = words_of(kProducts, &Product::word),
         .idle = belongs_to("a directory", [flags] { return writes_directory(*flags); })}},
       {"--shrinkage",
        &flags->shrinkage,
        "tokens that the layer's moments count for in the blocks of an expert, which borrows what "
        "too few tokens leave open (default: 32); 0: only its own",
        {.idle = belongs_to("a directory", [flags] { return writes_directory(*flags); })}},
       {"--quantized",
        &flags->quantized,
        "a scheme of convert --to, or an output of convert for this model (./NAME where it is "
        "called "
        "like a scheme): each layer is given what the layers before it make there, weights and "
        "inputs quantized",
        {.words = offered_targets(),
         .kind = ValueKind::kCheckpoint,
         .idle = belongs_to("a directory", [flags] { return writes_directory(*flags); })}}});
  add_source_and_job(table, *flags);
  table.add(FlagGroup::kJob,
            {{"--resume",
              &flags->resume,
              "continue a directory whose calibration was stopped or killed; the "
              "options must be the same",
              {.idle = belongs_to("a directory", [flags] { return writes_directory(*flags); })}}});
  table.add(FlagGroup::kReport, {progress_flag(&flags->progress), json_flag(&answer().is_json)});
  table.footer =
      "Examples:\n"
      "  ingot calibrate DeepSeek-V3.2 --text sample.json --out stats\n"
      "  ingot convert DeepSeek-V3.2 OUT --to nvfp4 --importance stats\n"
      "  ingot convert DeepSeek-V3.2 OUT --to int8 --dialect modelslim --activations static "
      "--activation-scales stats";
  return [flags] { return run_calibrate(*flags); };
}

}  // namespace ingot::cli
