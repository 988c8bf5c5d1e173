#include <array>
#include <memory>
#include <ostream>
#include <set>

#include <fmt/format.h>

#include "cli/commands/commands.h"
#include "cli/flags/calibration_text.h"
#include "cli/report/balance_report.h"
#include "cli/terminal/answer.h"
#include "cli/terminal/terminal.h"
#include "formats/base/error.h"
#include "formats/files/named_file.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"
#include "library/options/flag_table.h"
#include "report/report_file.h"
#include "shard/cut/expert_map.h"

namespace ingot::cli {
namespace {

using formats::Checkpoint;

// The readers of a map: convert --expert-map, and SGLang's --init-expert-location.
constexpr std::array<std::string_view, 2> kMapFormats = {"ingot", "sglang"};

struct BalanceFlags : CalibrationFlags {
  std::string loads, out, html, markdown, format = std::string(kMapFormats.front());
  std::optional<std::uint32_t> ep, slots, nodes;
};

/// The groups of experts of which a router chooses some.
std::uint32_t router_groups(const Checkpoint& source) {
  const auto groups = formats::whole_number(formats::config_value(source.config(), "n_group"),
                                            source.config().n_routed_experts);
  return groups && *groups > 0 ? static_cast<std::uint32_t>(*groups) : 1;
}

verify::ExpertLoads loads_of(const BalanceFlags& flags, const Checkpoint& source) {
  if (!flags.loads.empty()) {
    const std::filesystem::path path(flags.loads);
    if (path.extension() != ".json" && !std::filesystem::is_directory(path)) {
      warn_of(flags.loads,
              {"one file of statistics has no fingerprint of its model, so nothing says "
               "that it is this model's (ingot calibrate --out DIRECTORY writes one)"});
    }
    return verify::read_expert_loads(path, source);
  }
  verify::ExpertLoads loads;
  read_text(flags, source, "counting tokens by layer",
            [&](std::span<const verify::Prompt> documents, const verify::RunOptions& options) {
              loads = verify::count_expert_loads(source, documents, options);
            });
  return loads;
}

int run_balance(const BalanceFlags& flags) {
  if (flags.text.empty() == flags.loads.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "tokens are counted in a text, or were counted: give --text or --loads");
  require_absent_file(flags.out);
  require_report_place(flags.html, ReportForm::kPage);
  require_report_place(flags.markdown, ReportForm::kMarkdown);
  const Checkpoint source = open_source(flags);
  const std::set<std::uint32_t> layers = shard::layers_with_experts(source);
  if (layers.empty())
    throw Error(ErrorCode::kUnsupported, "has no experts to balance").in_file(flags.directory);
  const auto n_experts = static_cast<std::uint32_t>(source.config().n_routed_experts);
  const shard::BalanceShape shape{.slots = flags.slots.value_or(n_experts),
                                  .ep = flags.ep.value(),
                                  .nodes = flags.nodes.value_or(1),
                                  .groups = router_groups(source)};
  shard::require_even(shape, n_experts);
  Balance balance = balanced(loads_of(flags, source), layers, n_experts, shape);
  balance.directory = flags.directory;
  balance.map = flags.out;
  const bool is_sglang = flags.format == kMapFormats[1];
  const auto n_layers = static_cast<std::uint32_t>(source.config().num_hidden_layers);
  write_absent_file(flags.out, is_sglang ? sglang_map_text(balance, n_layers) : map_text(balance));
  const Document document = balance_document(balance);
  if (answer().is_json) {
    answer().add(balance_json(balance));
  } else {
    const std::uint32_t n_more = shape.slots - n_experts;
    out() << write_text(document, kScreenLines, report_width())
          << (is_sglang
                  ? fmt::format(
                        "{}: --ep-size {} --init-expert-location {}{}\n", flags.out, shape.ep,
                        flags.out,
                        n_more == 0 ? "" : fmt::format(" --ep-num-redundant-experts {}", n_more))
                  : fmt::format("{}: ingot convert {} OUT --ep {} --expert-map {}{}\n", flags.out,
                                flags.directory, shape.ep, flags.out,
                                n_more == 0 ? "" : " --redundant-experts"));
  }
  if (!flags.html.empty()) write_report_file(flags.html, write_html(document), ReportForm::kPage);
  if (!flags.markdown.empty())
    write_report_file(flags.markdown, write_markdown(document), ReportForm::kMarkdown);
  return kExitDone;
}

}  // namespace

std::function<int()> declare_balance(FlagTable& table) {
  auto flags = std::make_shared<BalanceFlags>();
  Flag text = text_flag(*flags);
  text.rule.is_required = false;
  text.rule.excludes = {"--loads"};
  table.add(
      FlagGroup::kCommon,
      {required("directory", &flags->directory, kDirectoryHelp, ValueKind::kCheckpoint),
       text,
       {"--loads",
        &flags->loads,
        "tokens per expert that were counted: a directory or file of ingot calibrate, or JSON "
        "{\"layers\": {\"3\": [tokens, ...]}} (.json)",
        {.kind = ValueKind::kPath}},
       {"--ep",
        &flags->ep,
        "ranks that share the experts",
        {.is_required = true, .is_positive = true}},
       {"--slots",
        &flags->slots,
        "places for experts on all ranks together (default: one for each expert); the busiest "
        "experts are in several",
        {.is_positive = true}},
       {"--nodes",
        &flags->nodes,
        "machines that the ranks run on: groups of experts stay within one where the router has as "
        "many groups, or a multiple (default: 1)",
        {.is_positive = true}},
       required_output("--out", &flags->out,
                       "expert map to write, for convert --expert-map; must be "
                       "absent",
                       ValueKind::kFile),
       {"--format",
        &flags->format,
        "reader of the map: ingot (convert --expert-map), or sglang (--init-expert-location, which "
        "places the experts of an uncut checkpoint as it loads)",
        {.choices = {kMapFormats.begin(), kMapFormats.end()}}},
       max_tokens_flag(*flags)});
  add_source_and_job(table, *flags);
  table.add(FlagGroup::kReport, {progress_flag(&flags->progress),
                                 {"--html",
                                  &flags->html,
                                  "also write a page with the tokens by layer and rank",
                                  {.kind = ValueKind::kFile, .is_written = true}},
                                 {"--markdown",
                                  &flags->markdown,
                                  "also write the report as Markdown",
                                  {.kind = ValueKind::kFile, .is_written = true}},
                                 json_flag(&answer().is_json)});
  table.footer =
      "Examples:\n"
      "  ingot balance DeepSeek-V3.2 --text sample.json --ep 32 --slots 288 --nodes 4 --out "
      "map.json\n"
      "  ingot balance DeepSeek-V3.2 --loads statistics.safetensors --ep 16 --out map.json --html "
      "load.html\n"
      "  ingot convert DeepSeek-V3.2 OUT --ep 32 --expert-map map.json --redundant-experts";
  return [flags] { return run_balance(*flags); };
}

}  // namespace ingot::cli
