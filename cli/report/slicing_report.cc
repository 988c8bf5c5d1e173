#include "cli/report/slicing_report.h"

#include <algorithm>

#include <fmt/format.h>

#include "convert/output/rank_directories.h"
#include "report/figures.h"
#include "report/rows.h"

namespace ingot::cli {

using convert::Plan;
using formats::Json;

namespace {

Json rank_rows(const Plan& plan) {
  const shard::Topology& topology = plan.slicing->topology;
  Json rows = Json::array();
  for (std::uint32_t rank = 0; rank < topology.n_ranks(); ++rank) {
    const shard::RankPosition at = topology.position(rank);
    std::uint64_t n_files = 0, n_bytes = 0;
    for (const convert::RankFile& file : convert::files_of_rank(plan, rank)) {
      ++n_files;
      n_bytes += plan.files[file.file].n_bytes;
    }
    rows.push_back({{"rank", at.rank},
                    {"stage", at.stage},
                    {"tp_rank", at.tp_rank},
                    {"ep_rank", at.ep_rank},
                    {"etp_rank", at.etp_rank},
                    {"files", n_files},
                    {"bytes", n_bytes}});
  }
  return rows;
}

std::string layers_text(const Plan& plan, std::uint32_t stage, bool has_mtp) {
  const auto& first = plan.slicing->stages.first;
  return fmt::format("{}-{}{}", first[stage], first[stage + 1] - 1,
                     has_mtp && stage + 2 == first.size() ? " and MTP" : "");
}

bool writes_mtp(const Plan& plan) {
  return std::any_of(plan.tensors.begin(), plan.tensors.end(), [&](const auto& planned) {
    const formats::LogicalTensor& tensor = plan.tensor_of(planned);
    return planned.action != convert::Action::kDrop && tensor.layer &&
           *tensor.layer >= plan.source.config().num_hidden_layers;
  });
}

}  // namespace

std::vector<std::string> alignment_notes(const Plan& plan) {
  std::vector<std::string> notes;
  if (!plan.is_sliced()) return notes;
  if (plan.alignments.block[0] != 0) {
    notes.push_back(fmt::format(
        "FP8 blocks are retiled to {} x {}, on every rank; each takes its parent's scale, so no "
        "value changes. Engines quantize activations in groups as wide as the block: with fewer "
        "than 128 columns their results differ in rounding. The Triton kernels of vLLM and SGLang "
        "take the block from the config; DeepGEMM, CUTLASS, TensorRT-LLM and DeepSeek's code need "
        "128 x 128",
        plan.alignments.block[0], plan.alignments.block[1]));
  }
  const auto& widths = plan.alignments.widths;
  const auto padded = [&](const char* key, std::uint64_t width) {
    if (width == 0) return;
    notes.push_back(
        fmt::format("{} is padded to {} with zeros at its end, in config.json too; "
                    "ingot merge drops them",
                    key, width));
  };
  padded("intermediate_size", widths.intermediate);
  padded("moe_intermediate_size", widths.moe_intermediate);
  padded("vocab_size", widths.vocab);
  if (widths.vocab != 0) {
    notes.emplace_back(
        "logits of padded tokens are 0: the sampler must leave out ids beyond the "
        "tokenizer's");
  }
  if (plan.counts.fitted_to_bf16 > 0) {
    notes.push_back(fmt::format("{} tensors become BF16, because cuts would split their blocks",
                                plan.counts.fitted_to_bf16));
  }
  return notes;
}

std::vector<Block> slicing_blocks(const Plan& plan) {
  if (!plan.is_sliced()) return {};
  const shard::Topology& topology = plan.slicing->topology;
  const Json rows = rank_rows(plan);
  std::uint64_t least = UINT64_MAX, most = 0;
  for (const Json& row : rows) {
    least = std::min(least, row["bytes"].get<std::uint64_t>());
    most = std::max(most, row["bytes"].get<std::uint64_t>());
  }
  const bool has_mtp = writes_mtp(plan);
  const auto layers = [&](const Json& stage) { return layers_text(plan, stage, has_mtp); };
  std::vector<Block> blocks = {
      Paragraph{
          fmt::format("layout       {}: {} rank(s) = {} stage(s) x lcm(tp {}, ep {} x etp {})",
                      plan.options.layout->name, topology.n_ranks(), topology.pp, topology.tp,
                      topology.ep, topology.etp)},
      table_of(rows, {{"rank"},
                      {"stage"},
                      {"layers", "stage", layers},
                      {"tp_rank"},
                      {"ep_rank"},
                      {"etp_rank"},
                      {"files"},
                      {"bytes"}}),
      Paragraph{fmt::format("a rank       loads {} to {} of weights; files of several ranks are {}",
                            bytes_text(least), bytes_text(most),
                            plan.options.links || !plan.has_rank_directories()
                                ? "written once and linked"
                                : "copied")}};
  blocks.push_back(remarks_of("note", alignment_notes(plan)));
  return blocks;
}

Json slicing_report_json(const Plan& plan) {
  if (!plan.is_sliced()) return nullptr;
  const shard::Topology& topology = plan.slicing->topology;
  return {{"layout", std::string(plan.options.layout->name)},
          {"tp", topology.tp},
          {"ep", topology.ep},
          {"etp", topology.etp},
          {"pp", topology.pp},
          {"ranks", rank_rows(plan)},
          {"notes", alignment_notes(plan)}};
}

}  // namespace ingot::cli
