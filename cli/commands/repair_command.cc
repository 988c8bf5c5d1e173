#include <algorithm>
#include <memory>
#include <ostream>

#include <fmt/format.h>

#include "cli/commands/commands.h"
#include "cli/commands/job.h"
#include "cli/terminal/answer.h"
#include "cli/terminal/terminal.h"
#include "convert/output/apart.h"
#include "formats/base/printable.h"
#include "formats/config/config_meaning.h"
#include "formats/config/nested_config.h"
#include "formats/family/text_names.h"
#include "formats/files/hub_cache.h"
#include "formats/json/json.h"
#include "formats/text/list_text.h"
#include "library/conversion.h"
#include "library/options/flag_table.h"

namespace ingot::cli {

using formats::Checkpoint;
using formats::Json;

namespace {

struct RepairFlags {
  library::RepairOptions options;
  JobFlags job;
};

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

std::vector<std::string> mended_lines(const convert::Plan& plan, const std::string& index_fault) {
  std::vector<std::string> lines;
  if (!index_fault.empty()) lines.push_back(fmt::format("the index is rebuilt: {}", index_fault));
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
  std::string& input = flags.options.input;
  input = formats::checkpoint_directory(input).string();
  convert::require_apart({.folders = {input}}, flags.job.output);
  flags.job.execute.stamps.add(input);
  const library::Repair repair =
      library::plan_repair(flags.options, threads_of(flags.job.execute.threads));
  const convert::Plan& plan = repair.conversion.plan;
  const std::vector<std::string> lines = mended_lines(plan, repair.index_fault);
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
  table.add(FlagGroup::kCommon,
            {required("input", &flags->options.input, "directory of the checkpoint",
                      ValueKind::kCheckpoint),
             required_output("output", &flags->job.output, kOutputHelp, ValueKind::kFolder)});
  library::declare_repair(table, flags->options);
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
