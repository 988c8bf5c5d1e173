#include "library/options/slicing_flags.h"

#include <array>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/text/spelling.h"
#include "library/options/flag_table.h"

namespace ingot {
namespace {

constexpr std::array kFits = {shard::TpFit::kRefuse, shard::TpFit::kRetile, shard::TpFit::kPad,
                              shard::TpFit::kBf16};
constexpr std::array kSharedExperts = {shard::SharedExperts::kTp,
                                       shard::SharedExperts::kReplicated};
constexpr std::uint64_t kMaxExpertMapBytes = std::uint64_t{64} << 20;

[[noreturn]] void refuse(const std::string& fact) {
  throw Error(ErrorCode::kInvalidArgument, fact);
}

const formats::Layout* layout_of(const SlicingFlags& flags) {
  const bool is_cut = flags.tp || flags.ep || flags.etp || flags.pp;
  if (flags.layout.empty()) return formats::find_layout(is_cut ? "ranks" : "hf");
  const formats::Layout* layout = formats::find_layout(flags.layout);
  if (layout == nullptr)
    refuse_word("--layout", flags.layout, formats::layouts(), &formats::Layout::name);
  if (!layout->is_sliced && is_cut) {
    refuse(
        fmt::format("--layout {} is one checkpoint, and --tp, --ep, --etp and --pp cut it "
                    "(--layout ranks)",
                    layout->name));
  }
  return layout;
}

// --mp N is tensor and expert parallelism over the same N ranks.
shard::Topology native_topology(const SlicingFlags& flags) {
  if (!flags.mp) refuse("--layout deepseek-mp needs the number of ranks, --mp N");
  const bool fits = flags.tp.value_or(*flags.mp) == *flags.mp &&
                    flags.ep.value_or(*flags.mp) == *flags.mp && flags.etp.value_or(1) == 1 &&
                    flags.pp.value_or(1) == 1;
  if (!fits) {
    refuse(
        fmt::format("--layout deepseek-mp --mp {0} means --tp {0} --ep {0} --etp 1 --pp 1, and "
                    "another topology was given",
                    *flags.mp));
  }
  return shard::make_topology(*flags.mp, *flags.mp, 1, 1);
}

}  // namespace

void declare_slicing(FlagTable& table, SlicingFlags& flags) {
  const auto is_sliced = [&flags] { return layout_of(flags)->is_sliced; };
  const FlagRule of_map{
      .idle = belongs_to("--expert-map", [&flags] { return !flags.expert_map.empty(); })};
  table.add(
      FlagGroup::kSlicing,
      {{"--tp", &flags.tp, "tensor parallelism: ranks that cut attention, MLPs, vocabulary"},
       {"--ep", &flags.ep, "expert parallelism: groups that share out the experts"},
       {"--etp", &flags.etp, "ranks that cut each expert (default: --tp without --ep, else 1)"},
       {"--pp", &flags.pp, "pipeline stages"},
       {"--pp-layers",
        &flags.stages,
        "layers of each stage, e.g. 0-30,31-60 (default: balanced by bytes)",
        {.idle = belongs_to("--pp", [&flags] { return flags.pp.has_value(); })}},
       {"--layout",
        &flags.layout,
        fmt::format("{} (default: hf, or ranks when a topology is given)",
                    names_of(formats::layouts(), &formats::Layout::name)),
        {.words = words_of(formats::layouts(), &formats::Layout::name)}},
       {"--mp", &flags.mp, "ranks of layout deepseek-mp"},
       {"--tp-fit",
        &flags.fit,
        "where a cut splits a block of scales: refuse (default), retile (smaller FP8 blocks), pad "
        "(wider MLPs and vocabulary) or bf16",
        {.words = words_of(kFits, shard::tp_fit_name),
         .idle = belongs_to("a topology (--tp)", is_sliced)}},
       {"--shared-experts",
        &flags.shared,
        "tp (default): cut by --tp; replicated: whole everywhere",
        {.words = words_of(kSharedExperts, shard::shared_experts_name),
         .idle = belongs_to("a topology (--tp)", is_sliced)}},
       {"--expert-map",
        &flags.expert_map,
        "JSON: logical expert by physical slot (default: contiguous blocks)",
        {.kind = ValueKind::kFile, .idle = belongs_to("a topology (--ep)", is_sliced)}},
       {"--redundant-experts", &flags.redundant_experts,
        "let --expert-map give an expert several slots", of_map},
       {"--uneven-experts", &flags.uneven_experts,
        "let --expert-map give ranks different numbers of slots", of_map},
       {"--links",
        &flags.links,
        "yes (default): files that several ranks load are hard links to one; no: copies",
        {.choices = {"yes", "no"}, .idle = belongs_to("a topology (--tp, --ep)", is_sliced)}}});
}

void read_slicing(const SlicingFlags& flags, convert::PlanOptions& options) {
  options.layout = layout_of(flags);
  options.links = flags.links.value_or("yes") == "yes";
  convert::SlicingOptions& slicing = options.slicing;
  const bool is_native = options.layout->takes_mp;
  if (flags.mp && !is_native) refuse("--mp belongs to --layout deepseek-mp (use --tp and --ep)");
  slicing.topology = is_native ? native_topology(flags)
                               : shard::make_topology(flags.tp.value_or(1), flags.ep.value_or(1),
                                                      flags.etp, flags.pp.value_or(1));
  slicing.shared = shard::parse_shared_experts(flags.shared.value_or("tp"));
  slicing.fit = shard::parse_tp_fit(flags.fit.value_or("refuse"));
  slicing.stages = flags.stages;
  slicing.redundant_experts = flags.redundant_experts;
  slicing.uneven_experts = flags.uneven_experts;
  if (flags.expert_map.empty()) return;
  slicing.expert_map = read_text_file(flags.expert_map, kMaxExpertMapBytes);
  slicing.expert_map_where = flags.expert_map;
}

}  // namespace ingot
