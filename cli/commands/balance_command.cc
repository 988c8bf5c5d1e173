#include <filesystem>
#include <iostream>
#include <memory>

#include <fmt/format.h>

#include "cli/commands/commands.h"
#include "cli/flags/calibration_text.h"
#include "cli/flags/flag_table.h"
#include "cli/report/balance_report.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/terminal.h"
#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/base/parallel.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"
#include "shard/join/source.h"

namespace ingot::cli {
namespace {

using formats::Checkpoint;

struct BalanceFlags {
  std::string directory, loads, out, html, markdown, family, mem_limit = "4GiB", progress = "auto";
  CalibrationText text;
  std::optional<std::uint32_t> ep, slots, nodes;
  std::size_t threads = 0;
  bool json = false;
};

/// The groups of experts of which a router chooses some.
std::uint32_t router_groups(const Checkpoint& source) {
  const auto groups = formats::whole_number(formats::config_value(source.config(), "n_group"),
                                            source.config().n_routed_experts);
  return groups && *groups > 0 ? static_cast<std::uint32_t>(*groups) : 1;
}

verify::ExpertLoads loads_of(const BalanceFlags& flags, const Checkpoint& source,
                             std::size_t threads) {
  if (!flags.loads.empty()) return verify::read_expert_loads(flags.loads, source);
  shard::require_all_ranks(source);
  const std::vector<verify::Prompt> documents = read_calibration_text(flags.text, source);
  install_stop_signals();
  verify::RunOptions options{.threads = threads,
                             .mem_limit = parse_size(flags.mem_limit, "--mem-limit"),
                             .stop_requested = stop_requested};
  Progress progress(flags.progress, "counting tokens by layer", Progress::Unit::kSteps);
  options.progress = [&](std::uint64_t done, std::uint64_t all) { progress.update(done, all); };
  verify::ExpertLoads loads = verify::count_expert_loads(source, documents, options);
  progress.finish();
  notes() << progress.summary(threads);
  return loads;
}

int run_balance(const BalanceFlags& flags) {
  if (flags.text.path.empty() == flags.loads.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "tokens are counted in a text, or were counted: give --text or --loads");
  if (std::filesystem::exists(std::filesystem::symlink_status(flags.out)))
    throw Error(ErrorCode::kExists, "is there already (remove it, or choose another name)")
        .in_file(flags.out);
  const std::size_t threads = threads_of(flags.threads);
  const Checkpoint source =
      shard::open_source(flags.directory, {.open = {.family = flags.family, .threads = threads}});
  notes() << remark_lines("warning", source.remarks());
  const auto n_experts = static_cast<std::uint32_t>(source.config().n_routed_experts);
  const shard::BalanceShape shape{.slots = flags.slots.value_or(n_experts),
                                  .ep = flags.ep.value(),
                                  .nodes = flags.nodes.value_or(1),
                                  .groups = router_groups(source)};
  shard::require_even(shape, n_experts);
  Balance balance = balanced(loads_of(flags, source, threads), shape);
  balance.directory = flags.directory;
  balance.map = flags.out;
  write_text_file(flags.out, map_text(balance));
  const verify::Document document = balance_document(balance);
  if (flags.json) {
    std::cout << formats::json_text(*balance_json(balance));
  } else {
    std::cout << verify::write_text(document, verify::kScreenLines)
              << fmt::format("{}: ingot convert {} OUT --ep {} --expert-map {}{}\n", flags.out,
                             flags.directory, shape.ep, flags.out,
                             shape.slots > n_experts ? " --redundant-experts" : "");
  }
  if (!flags.html.empty()) write_text_file(flags.html, verify::write_html(document));
  if (!flags.markdown.empty()) write_text_file(flags.markdown, verify::write_markdown(document));
  return kExitDone;
}

}  // namespace

std::function<int()> declare_balance(FlagTable& table) {
  auto flags = std::make_shared<BalanceFlags>();
  Flag text = text_flag(flags->text);
  text.rule.is_required = false;
  text.rule.excludes = {"--loads"};
  table.add(
      FlagGroup::kCommon,
      {required("directory", &flags->directory, kDirectoryHelp, ValueKind::kFolder),
       text,
       {"--loads",
        &flags->loads,
        "tokens per expert that were counted: a file of ingot calibrate, or JSON "
        "{\"layers\": {\"3\": [tokens, ...]}} (.json)",
        {.kind = ValueKind::kFile}},
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
        "machines that the ranks stand on: groups of experts stay within one where the "
        "router has as many groups, or a multiple (default: 1)",
        {.is_positive = true}},
       required("--out", &flags->out,
                "expert map to write, for convert --expert-map; must be "
                "absent",
                ValueKind::kFile),
       max_tokens_flag(flags->text)});
  table.add(FlagGroup::kSource,
            {family_flag(&flags->family, "model family instead of config.json's"),
             family_file_flag(&flags->family)});
  table.add(FlagGroup::kJob, {mem_limit_flag(&flags->mem_limit), threads_flag(&flags->threads)});
  table.add(FlagGroup::kReport, {progress_flag(&flags->progress),
                                 {"--html",
                                  &flags->html,
                                  "also write a page with the tokens by layer and rank",
                                  {.kind = ValueKind::kFile}},
                                 {"--markdown",
                                  &flags->markdown,
                                  "also write the report as Markdown",
                                  {.kind = ValueKind::kFile}},
                                 json_flag(&flags->json)});
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
