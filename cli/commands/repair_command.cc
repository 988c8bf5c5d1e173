#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <ostream>

#include <fmt/format.h>

#include "cli/commands/commands.h"
#include "cli/commands/job.h"
#include "cli/terminal/answer.h"
#include "cli/terminal/terminal.h"
#include "convert/convert.h"
#include "convert/output/apart.h"
#include "convert/plan/repair.h"
#include "formats/base/printable.h"
#include "formats/checkpoint/promised_tensors.h"
#include "formats/config/config_meaning.h"
#include "formats/config/nested_config.h"
#include "formats/family/text_names.h"
#include "formats/files/hub_cache.h"
#include "formats/json/json.h"
#include "formats/text/list_text.h"
#include "library/options/flag_table.h"
#include "library/options/target_flags.h"
#include "shard/join/source.h"

namespace ingot::cli {

using formats::Checkpoint;
using formats::Json;

namespace {

struct RepairFlags {
  std::string input, family, dialect, links = "yes";
  TargetFlags target;  // only --allow
  JobFlags job;
};

struct Opened {
  Checkpoint source;
  std::string index_fault;  ///< fault of an index that is not of these files; empty: none
};

// True if weights are missing that config.json promises. Layers for multi-token prediction may be
// left out as a whole.
bool lacks_weights(const Checkpoint& source) {
  using formats::Gap;
  const formats::MissingTensors missing(source);
  return std::ranges::any_of(
      std::array{Gap::kMtpTensor, Gap::kIndexer, Gap::kCorrectionBias, Gap::kExpert, Gap::kOther},
      [&](Gap gap) { return !missing.of(gap).empty(); });
}

// By the index; where that fails, by the files that are here.
Opened open(const RepairFlags& flags, const convert::Allowances& allow) {
  formats::OpenOptions options{.family = flags.family,
                               .allow_unknown = &allow.unknown_tensor,
                               .allow_duplicate = &allow.duplicate_tensor,
                               .merges_copies = true,
                               .threads = threads_of(flags.job.execute.threads)};
  try {
    return {Checkpoint::open(flags.input, options), {}};
  } catch (const Error& error) {
    options.ignores_index = true;
    std::optional<Checkpoint> source;
    try {
      source = Checkpoint::open(flags.input, options);
    } catch (const Error&) {
    }
    // A file that did not arrive is no fault of the index.
    if (!source || lacks_weights(*source)) throw;
    return {*std::move(source), error.what()};
  }
}

// A value in a line: lists by their size.
std::string short_text(const Json& value) {
  if (value.is_null()) return "absent";
  if (value.is_array()) return fmt::format("{} entries", value.size());
  return printable(formats::config_text(value));
}

// The entries of `before` that `after` lacks, in a line.
std::string missing_text(const Json& before, const Json& after) {
  std::vector<std::string> names;
  for (const Json& entry : before) {
    if (std::ranges::find(after, entry) == after.end())
      names.push_back(printable(formats::config_text(entry)));
  }
  return list_text(names, 5);
}

// The changes of a block, a line for each value, at any depth.
void add_changes(const std::string& path, const Json& before, const Json& after,
                 std::vector<std::string>& lines) {
  if (before == after) return;
  if (before.is_object() && after.is_object()) {
    for (const auto& [key, value] : before.items())
      add_changes(fmt::format("{}.{}", path, printable(key)), value,
                  formats::json_member(after, key), lines);
    for (const auto& [key, value] : after.items()) {
      if (formats::json_member(before, key).is_null())
        add_changes(fmt::format("{}.{}", path, printable(key)), Json(), value, lines);
    }
    return;
  }
  std::string line = fmt::format("{}: {} -> {}", path, short_text(before), short_text(after));
  if (before.is_array() && after.is_array()) {
    const std::string gone = missing_text(before, after), added = missing_text(after, before);
    if (!gone.empty()) line += fmt::format(", without {}", gone);
    if (!added.empty()) line += fmt::format(", with {}", added);
    if (gone.empty() && added.empty()) line += ", in another order";
  }
  lines.push_back(std::move(line));
}

std::vector<std::string> changes_of(const Json& before, const Json& after) {
  std::vector<std::string> lines;
  add_changes("quantization_config", before, after, lines);
  return lines;
}

std::vector<std::string> mended_lines(const convert::Plan& plan, const Opened& opened) {
  std::vector<std::string> lines;
  if (!opened.index_fault.empty())
    lines.push_back(fmt::format("the index is rebuilt: {}", opened.index_fault));
  const Checkpoint& source = plan.source;
  if (plan.json.config != source.config_text()) {
    const formats::ModelConfig written =
        formats::parse_model_config(plan.json.config, "config.json");
    for (std::string& line : changes_of(formats::quantization_block(source.config()),
                                        formats::quantization_block(written)))
      lines.push_back("config.json: " + line);
    if (const auto said = formats::understated_mtp(source.family(), source.config())) {
      lines.push_back(fmt::format("config.json: num_nextn_predict_layers: {} -> {}", *said,
                                  written.num_nextn_predict_layers));
    }
  }
  if (!plan.json.description.empty() &&
      (source.description().is_null() ||
       formats::parse_json(plan.json.description, "") != source.description()))
    lines.push_back(fmt::format("{} is rebuilt", plan.target.dialect->description_file));
  if (plan.counts.rescaled > 0) {
    lines.push_back(
        fmt::format("{} tensors get the global scale of those with which loaders fuse them",
                    plan.counts.rescaled));
  }
  std::size_t n_linked = 0;
  for (const convert::PlannedFile& file : plan.files) n_linked += file.is_linked ? 1 : 0;
  lines.push_back(
      fmt::format("{} of {} weights files stay as they are{}", n_linked, plan.files.size(),
                  n_linked > 0 ? ": hard links, or copies on another file system" : ""));
  return lines;
}

int run_repair(RepairFlags& flags) {
  flags.input = formats::checkpoint_directory(flags.input).string();
  convert::require_apart({.folders = {flags.input}}, flags.job.output);
  if (shard::is_sliced(flags.input)) {
    throw Error(ErrorCode::kUnsupported,
                "holds slices of ranks (put them together with ingot merge, repair that, and cut "
                "it again)")
        .in_file(flags.input);
  }
  flags.job.execute.stamps.add(flags.input);
  convert::Recipe recipe = make_recipe(flags.target);
  const Opened opened = open(flags, recipe.allow);
  if (opened.source.dialect().is_read_only) {
    throw Error(ErrorCode::kUnsupported,
                "is in dialect {}, which is read and never written (ingot convert makes "
                "compressed-tensors of it)",
                opened.source.dialect().name)
        .in_file(flags.input);
  }
  recipe.choices.dialect = flags.dialect.empty()
                               ? std::string(convert::repaired_dialect(opened.source).name)
                               : flags.dialect;
  recipe.choices.repair =
      std::make_shared<const convert::RepairFacts>(convert::read_repair_facts(opened.source));
  convert::PlanOptions options;
  options.links = flags.links == "yes";
  const convert::Plan plan = convert::plan_conversion(opened.source, std::move(recipe), options);
  const std::vector<std::string> lines = mended_lines(plan, opened);
  if (answer().is_json) {
    answer().add({{"changes", lines}});
  } else {
    out() << fmt::format("{}\n", fmt::join(lines, "\n")) << std::flush;
  }
  return run_job(flags.job, "repairing", plan);
}

}  // namespace

std::function<int()> declare_repair(FlagTable& table) {
  auto flags = std::make_shared<RepairFlags>();
  table.add(
      FlagGroup::kCommon,
      {required("input", &flags->input, "directory of the checkpoint", ValueKind::kCheckpoint),
       required_output("output", &flags->job.output, kOutputHelp, ValueKind::kFolder)});
  table.add(FlagGroup::kSource,
            {family_flag(&flags->family, "model family instead of config.json's"),
             family_file_flag(&flags->family), allow_flag(flags->target)});
  table.add(FlagGroup::kTarget,
            {{"--dialect", &flags->dialect,
              "layout of the quantized tensors, if it is not known any more: deepseek, "
              "compressed-tensors, modelopt, modelslim, mxfp4 (default: as it is recognized)"},
             {"--links",
              &flags->links,
              "yes (default): unchanged files are hard links to those of the source; no: all are "
              "written",
              {.words = {"yes", "no"}}}});
  declare_job(table, flags->job);
  table.footer =
      "Examples:\n"
      "  ingot check DIR --engine vllm                its faults for this engine\n"
      "  ingot repair DIR OUT --dry-run               the repairs, without an output\n"
      "  ingot repair DIR OUT\n"
      "  ingot verify DIR OUT --levels weights        the cost of new block scales";
  return [flags] { return run_repair(*flags); };
}

}  // namespace ingot::cli
