#include "cli/report/loading_report.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include <fmt/format.h>

#include "cli/terminal/terminal.h"
#include "engines/limits.h"
#include "engines/versions/versions.h"
#include "formats/experts/expert_views.h"
#include "formats/json/json.h"
#include "report/figures.h"
#include "report/table_text.h"

namespace ingot::cli {

using convert::Plan;
using convert::PlannedTensor;
using engines::Loader;
using engines::LoadUnit;
using formats::Json;

namespace {

bool is_for_drafts(const Plan& plan, const formats::LogicalTensor& tensor) {
  return tensor.layer && *tensor.layer >= plan.source.config().num_hidden_layers;
}

/// Returns the bytes around a slice that a memory map reads. Slices by rows are one stretch, those
/// by columns a piece of every row, with gaps that are read too unless they are wide.
std::uint64_t bytes_of_map(const shard::PartCut& cut) {
  const bool is_of_columns = cut.kind() == shard::PartCut::Kind::kCut && cut.n_slices() > 1 &&
                             static_cast<std::size_t>(cut.axis()) + 1 == cut.whole_shape().size() &&
                             cut.axis() > 0;
  if (!is_of_columns) return cut.slice_bytes();
  const std::uint64_t n_rows =
      std::accumulate(cut.slice_shape().begin(), cut.slice_shape().end() - 1, std::uint64_t{1},
                      std::multiplies<>());
  if (n_rows == 0) return 0;
  const std::uint64_t piece = cut.slice_bytes() / n_rows, row = piece * cut.n_slices();
  return n_rows * std::min(row, piece + engines::kReadAround);
}

/// Sums over the tensors that a rank holds a part of.
struct RankSums {
  std::uint64_t pages = 0;    // bytes read through a memory map
  std::uint64_t slices = 0;   // bytes of its slices
  std::uint64_t tensors = 0;  // bytes of the whole tensors
};

std::vector<RankSums> sums_of_ranks(const Plan& plan) {
  std::vector<RankSums> ranks(plan.slicing->topology.n_ranks());
  for (const convert::PlannedFile& file : plan.files) {
    RankSums in_file;
    for (const convert::PartRef& at : file.parts) {
      const PlannedTensor& planned = plan.tensors[at.tensor];
      if (is_for_drafts(plan, plan.tensor_of(planned))) continue;
      const shard::PartCut cut = plan.part_cut(planned, at.part, plan.places[at.place].ep_rank);
      in_file.pages += bytes_of_map(cut);
      in_file.slices += cut.slice_bytes();
      in_file.tensors += planned.parts[at.part].n_bytes;
    }
    for (const convert::PlannedFile::Member& member : file.members) {
      for (const std::uint32_t rank : member.ranks) {
        ranks[rank].pages += in_file.pages;
        ranks[rank].slices += in_file.slices;
        ranks[rank].tensors += in_file.tensors;
      }
    }
  }
  return ranks;
}

/// The files of the checkpoint as loaders see them.
struct Files {
  std::vector<std::uint64_t> n_bytes;  // of all tensors in each
  std::vector<bool> is_used;           // false: only a draft model uses its tensors
  std::uint64_t all = 0, used = 0;     // of all tensors; of those that are not for drafts
  bool has_stacks = false;
  bool pays_for_turned_stacks = false;  // loaders turn them, and one would take single experts
  bool is_in_name_order = true;

  [[nodiscard]] bool takes(const Loader& loader, std::size_t file) const {
    return is_used[file] || !loader.skips_files;
  }
};

bool are_in_name_order(const formats::Checkpoint& source) {
  std::vector<const formats::StoredTensor*> stored;
  for (const formats::StoredTensor& tensor : source.stored()) stored.push_back(&tensor);
  std::ranges::sort(stored, [](const auto* a, const auto* b) {
    return a->file != b->file ? a->file < b->file : a->offset < b->offset;
  });
  return std::ranges::adjacent_find(stored, [](const auto* a, const auto* b) {
           return a->file == b->file && a->name > b->name;
         }) == stored.end();
}

Files files_of(const Plan& plan) {
  const formats::Checkpoint& source = plan.source;
  Files files{.n_bytes = std::vector<std::uint64_t>(source.files().size()),
              .is_used = std::vector<bool>(source.files().size())};
  for (const formats::LogicalTensor& tensor : source.tensors()) {
    const bool is_used = !is_for_drafts(plan, tensor);
    files.has_stacks |= tensor.stack != formats::StackOrder::kNone;
    tensor.encoding.stored.for_each([&](formats::Part, std::uint32_t index) {
      const formats::StoredTensor& stored = source.stored()[index];
      files.n_bytes[stored.file] += stored.n_bytes;
      files.all += stored.n_bytes;
      if (!is_used) return;
      files.used += stored.n_bytes;
      files.is_used[stored.file] = true;
    });
  }
  files.is_in_name_order = are_in_name_order(source);
  files.pays_for_turned_stacks =
      formats::holds_input_major_stacks(source) &&
      std::ranges::any_of(engines::engines(), [&](const engines::EngineRow* engine) {
        return engines::takes_singles(*engine, source.family());
      });
  return files;
}

LoaderBytes bytes_of(const Loader& loader, const std::vector<RankSums>& ranks, const Files& files) {
  LoaderBytes bytes{.loader = &loader, .asked = {}, .read = {}};
  std::uint64_t all = 0;
  std::vector<std::uint64_t> shares(ranks.size());
  for (std::size_t file = 0, n = 0; file < files.n_bytes.size(); ++file) {
    if (!files.takes(loader, file)) continue;
    all += files.n_bytes[file];
    shares[n++ % ranks.size()] += files.n_bytes[file];
  }
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankSums& sums = ranks[rank];
    std::uint64_t asked = loader.skips_experts ? sums.tensors : files.used, read = 0;
    switch (loader.unit) {
      case LoadUnit::kPages:
        read = sums.pages;
        break;
      case LoadUnit::kTensors:
        read = sums.tensors;
        break;
      case LoadUnit::kFiles:
        asked = read = all;
        break;
      case LoadUnit::kFileShare:
        read = shares[rank];
        break;
      case LoadUnit::kByteShare:
        read = (all + ranks.size() - 1) / ranks.size();
        break;
      case LoadUnit::kOwnFiles:
        asked = read = sums.slices;
        break;
    }
    bytes.asked.push_back(asked);
    bytes.read.push_back(read);
  }
  return bytes;
}

std::uint64_t largest(const std::vector<std::uint64_t>& by_rank) {
  return *std::ranges::max_element(by_rank);
}

std::uint64_t total(const std::vector<std::uint64_t>& by_rank) {
  return std::accumulate(by_rank.begin(), by_rank.end(), std::uint64_t{0});
}

std::vector<std::string> advice_of(const Loading& loading, const Files& files,
                                   const std::vector<RankSums>& ranks) {
  std::vector<std::string> advice;
  const std::size_t n_ranks = ranks.size();
  std::uint64_t slices = 0;
  for (const RankSums& sums : ranks) slices = std::max(slices, sums.slices);
  if (n_ranks > 1) {
    advice.push_back(fmt::format(
        "rank files (ingot convert --layout vllm-sharded, or sglang-sharded): a rank reads {}, and "
        "each host only the files of its ranks",
        bytes_text(slices)));
  }
  if (loading.topology.ep > 1 && files.has_stacks) {
    advice.push_back(
        "single experts (--experts separate): vLLM then skips those of other ranks with "
        "--enable-ep-weight-filter; of a stack every rank asks for all experts");
  }
  if (files.pays_for_turned_stacks) {
    advice.push_back(fmt::format("single experts (--experts separate): stacks are here {}",
                                 engines::kCostOfTurnedStacks));
  }
  std::uint64_t drafts = 0;
  for (std::size_t file = 0; file < files.n_bytes.size(); ++file) {
    if (files.is_used[file]) drafts += files.n_bytes[file];
  }
  drafts -= files.used;
  if (drafts > 0) {
    advice.push_back(fmt::format(
        "layers for drafts in files of their own (--files N, or --mtp drop): loaders of whole "
        "files read {} of them for nothing",
        bytes_text(drafts)));
  }
  if (n_ranks > 1 && files.n_bytes.size() % n_ranks != 0) {
    advice.push_back(fmt::format(
        "a number of even files that {} divides (--files {}): loaders that share out files end "
        "with ranks that wait ({} files here)",
        n_ranks, n_ranks, files.n_bytes.size()));
  }
  if (!files.is_in_name_order) {
    advice.push_back(
        "tensors in the order of their names (--order name), in which default loaders read: one "
        "stream for each file");
  }
  return advice;
}

}  // namespace

Loading loading_of(const Plan& plan) {
  const Files files = files_of(plan);
  const std::vector<RankSums> ranks = sums_of_ranks(plan);
  Loading loading{.topology = plan.slicing->topology,
                  .n_bytes = files.all,
                  .unused_bytes = files.all - files.used,
                  .n_files = files.n_bytes.size(),
                  .loaders = {},
                  .advice = {}};
  for (const Loader& loader : engines::loaders())
    loading.loaders.push_back(bytes_of(loader, ranks, files));
  loading.advice = advice_of(loading, files, ranks);
  return loading;
}

std::string loading_text(const Loading& loading) {
  std::string text = fmt::format(
      "{} in {}, for {} rank{} (tp {}, ep {}, pp {})\n", bytes_text(loading.n_bytes),
      loading.n_files == 1 ? std::string("1 file") : fmt::format("{} files", loading.n_files),
      loading.topology.n_ranks(), loading.topology.n_ranks() == 1 ? "" : "s", loading.topology.tp,
      loading.topology.ep, loading.topology.pp);
  if (loading.unused_bytes > 0) {
    text += fmt::format("{} of them are for drafts, which are not loaded by default\n",
                        bytes_text(loading.unused_bytes));
  }
  Table table{.columns = {"engine", "loader", number("a rank asks for"), number("a rank reads"),
                          number("all ranks read"), "options"}};
  for (const LoaderBytes& row : loading.loaders) {
    const Loader& loader = *row.loader;
    if (loader.skips_experts && loading.topology.ep == 1) continue;
    table.rows.push_back({engines::newest(loader.engine).name, loader.name,
                          bytes_text(largest(row.asked)), bytes_text(largest(row.read)),
                          bytes_text(total(row.read)),
                          loader.option.empty() ? "default" : loader.option});
  }
  text += table_text(table, report_width());
  for (const std::string& line : loading.advice) text += fmt::format("less      {}\n", line);
  return wrapped_text(text, report_width());
}

Json loading_json(const Loading& loading) {
  Json json = {{"ranks", loading.topology.n_ranks()},
               {"tp", loading.topology.tp},
               {"ep", loading.topology.ep},
               {"pp", loading.topology.pp},
               {"bytes", loading.n_bytes},
               {"draft_bytes", loading.unused_bytes},
               {"files", loading.n_files},
               {"loaders", Json::array()},
               {"advice", loading.advice}};
  for (const LoaderBytes& row : loading.loaders) {
    const Loader& loader = *row.loader;
    if (loader.skips_experts && loading.topology.ep == 1) continue;
    json["loaders"].push_back({{"engine", engines::newest(loader.engine).word},
                               {"version", engines::newest(loader.engine).version},
                               {"loader", loader.name},
                               {"option", loader.option},
                               {"asked_bytes", row.asked},
                               {"read_bytes", row.read},
                               {"source", loader.source}});
  }
  return json;
}

}  // namespace ingot::cli
