#include "cli/slicing_option.h"

#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/flag_table.h"
#include "cli/idle_words.h"
#include "formats/base/error.h"
#include "formats/base/fd.h"

namespace ingot::cli {
namespace {

constexpr std::uint64_t kMaxExpertMapBytes = std::uint64_t{64} << 20;

std::vector<std::string_view> layout_names() {
  std::vector<std::string_view> names;
  for (const formats::Layout& row : formats::layouts()) names.push_back(row.name);
  return names;
}

[[noreturn]] void refuse(const std::string& fact) {
  throw Error(ErrorCode::kInvalidArgument, fact);
}

const formats::Layout* layout_of(const SlicingWords& words) {
  const bool is_cut = words.tp || words.ep || words.etp || words.pp;
  if (words.layout.empty()) return formats::find_layout(is_cut ? "ranks" : "hf");
  const formats::Layout* layout = formats::find_layout(words.layout);
  if (layout == nullptr) {
    refuse(fmt::format("--layout {} is unknown (there are {})", words.layout,
                       fmt::join(layout_names(), ", ")));
  }
  if (!layout->is_sliced && is_cut) {
    refuse(
        fmt::format("--layout {} is one checkpoint, and --tp, --ep, --etp and --pp cut it "
                    "(--layout ranks)",
                    layout->name));
  }
  return layout;
}

// --mp N is tensor and expert parallelism over the same N ranks.
shard::Topology native_topology(const SlicingWords& words) {
  if (!words.mp) refuse("--layout deepseek-mp needs the number of ranks, --mp N");
  const bool fits = words.tp.value_or(*words.mp) == *words.mp &&
                    words.ep.value_or(*words.mp) == *words.mp && words.etp.value_or(1) == 1 &&
                    words.pp.value_or(1) == 1;
  if (!fits) {
    refuse(
        fmt::format("--layout deepseek-mp --mp {0} means --tp {0} --ep {0} --etp 1 --pp 1, and "
                    "another topology was given",
                    *words.mp));
  }
  return shard::make_topology(*words.mp, *words.mp, 1, 1);
}

void refuse_idle(const SlicingWords& words, const formats::Layout& layout) {
  const bool is_sliced = layout.is_sliced;
  const IdleWord rows[] = {
      {"--expert-map", !words.expert_map.empty(), is_sliced, "a topology (--ep)"},
      {"--redundant-experts", words.redundant_experts, !words.expert_map.empty(), "--expert-map"},
      {"--uneven-experts", words.uneven_experts, !words.expert_map.empty(), "--expert-map"},
      {"--shared-experts", words.shared.has_value(), is_sliced, "a topology (--tp)"},
      {"--tp-fit", words.fit.has_value(), is_sliced, "a topology (--tp)"},
      {"--links", words.links.has_value(), is_sliced, "a topology (--tp, --ep)"},
      {"--pp-layers", !words.stages.empty(), words.pp.has_value(), "--pp"},
  };
  refuse_idle_words(rows);
}

}  // namespace

void declare_slicing(FlagTable& table, SlicingWords& words) {
  table.add(
      FlagGroup::kSlicing,
      {{"--tp", &words.tp, "tensor parallelism: ranks that cut attention, MLPs, vocabulary"},
       {"--ep", &words.ep, "expert parallelism: groups that share out the experts"},
       {"--etp", &words.etp, "ranks that cut each expert (default: --tp without --ep, else 1)"},
       {"--pp", &words.pp, "pipeline stages"},
       {"--pp-layers", &words.stages,
        "layers of each stage, e.g. 0-30,31-60 (default: balanced by bytes)"},
       {"--layout", &words.layout,
        fmt::format("{} (default: hf, or ranks when a topology is given)",
                    fmt::join(layout_names(), ", "))},
       {"--mp", &words.mp, "ranks of layout deepseek-mp"},
       {"--tp-fit", &words.fit,
        "where a cut splits a block of scales: refuse (default), retile (smaller FP8 blocks), pad "
        "(wider MLPs and "
        "vocabulary) or bf16"},
       {"--shared-experts", &words.shared,
        "tp (default): cut by --tp; replicated: whole everywhere"},
       {"--expert-map", &words.expert_map,
        "JSON: logical expert by physical slot (default: contiguous blocks)"},
       {"--redundant-experts", &words.redundant_experts,
        "let --expert-map give an expert several slots"},
       {"--uneven-experts", &words.uneven_experts,
        "let --expert-map give ranks different numbers of slots"},
       {"--links",
        &words.links,
        "yes (default): files that several ranks load are hard links to one; no: copies",
        {.choices = {"yes", "no"}}}});
}

void read_slicing(const SlicingWords& words, convert::PlanOptions& options) {
  options.layout = layout_of(words);
  refuse_idle(words, *options.layout);
  options.links = words.links.value_or("yes") == "yes";
  convert::SlicingOptions& slicing = options.slicing;
  const bool is_native = options.layout->takes_mp;
  if (words.mp && !is_native) refuse("--mp belongs to --layout deepseek-mp (use --tp and --ep)");
  slicing.topology = is_native ? native_topology(words)
                               : shard::make_topology(words.tp.value_or(1), words.ep.value_or(1),
                                                      words.etp, words.pp.value_or(1));
  slicing.shared = shard::parse_shared_experts(words.shared.value_or("tp"));
  slicing.fit = shard::parse_tp_fit(words.fit.value_or("refuse"));
  slicing.stages = words.stages;
  slicing.redundant_experts = words.redundant_experts;
  slicing.uneven_experts = words.uneven_experts;
  if (words.expert_map.empty()) return;
  slicing.expert_map = read_text_file(words.expert_map, kMaxExpertMapBytes);
  slicing.expert_map_where = words.expert_map;
}

}  // namespace ingot::cli
