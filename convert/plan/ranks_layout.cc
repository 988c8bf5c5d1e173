#include <map>
#include <tuple>

#include <fmt/format.h>

#include "convert/plan/passes.h"
#include "formats/base/error.h"

// Layout ranks: a directory per rank, and files that several ranks load.

namespace ingot::convert {

using shard::Owner;
using shard::RankPosition;

namespace {

std::string padded_number(std::uint32_t number, std::uint32_t total) {
  const std::size_t width = std::max<std::size_t>(2, std::to_string(total).size());
  return fmt::format("{:0{}}-of-{:0{}}", number, width, total, width);
}

// Rows of congruent files, one for each set of ranks that own the same slices.
class RowAssigner {
 public:
  explicit RowAssigner(Plan& plan) : plan_(plan) {}

  void run() {
    for (PlannedTensor& planned : plan_.tensors) {
      if (planned.n_parts > 0) assign(planned);
    }
    name_files();
  }

 private:
  // Stage, owner, EP rank: the order of the files.
  using Key = std::tuple<std::uint32_t, Owner, std::uint32_t>;
  struct Row {
    std::uint32_t n_members = 1;
    std::vector<std::uint32_t> files;
    std::uint64_t in_file = 0;
  };

  void assign(PlannedTensor& planned) {
    const formats::LogicalTensor& tensor = plan_.tensor_of(planned);
    const std::vector<std::uint32_t> ep_ranks = ep_ranks_of(plan_, planned);
    const bool is_stack = planned.cut.owner == Owner::kExpert && is_expert_stack(tensor.rule->role);
    std::vector<PlannedPlace> places;
    for (const std::uint32_t stage : shard::stages_of(tensor, plan_.source, slicing_)) {
      if (ep_ranks.empty()) {
        places.push_back({.file = open_file(planned, {stage, owner_of(planned.cut), 0},
                                            PlannedPlace::kAllExperts)});
      }
      for (const std::uint32_t ep : ep_ranks) {
        const std::uint32_t share = is_stack ? ep : PlannedPlace::kAllExperts;
        if (is_stack && slicing_.experts.experts_of(*tensor.layer, ep).empty()) continue;
        places.push_back(
            {.file = open_file(planned, {stage, Owner::kExpert, ep}, share), .ep_rank = share});
      }
    }
    for (std::size_t p = 0; p < planned.n_parts; ++p) set_places(plan_, planned.parts[p], places);
  }

  // Ranks that hold all experts, cut by TP, share the file set of the TP ranks.
  Owner owner_of(const shard::TensorCut& cut) const {
    if (cut.owner != Owner::kExpert) return cut.owner;
    if (slicing_.topology.etp == 1) return Owner::kAll;
    return slicing_.topology.etp == slicing_.topology.tp ? Owner::kTp : Owner::kExpert;
  }

  std::uint32_t open_file(const PlannedTensor& planned, const Key& key, std::uint32_t share) {
    Row& row = rows_[key];
    std::uint64_t n_bytes = 0;
    for (std::size_t p = 0; p < planned.n_parts; ++p)
      n_bytes += plan_.part_cut(planned, p, share).slice_bytes();
    if (row.files.empty() || (row.in_file > 0 && row.in_file + n_bytes > max_bytes_)) {
      row.files.push_back(static_cast<std::uint32_t>(plan_.files.size()));
      row.n_members = planned.cut.n;
      row.in_file = 0;
      plan_.files.emplace_back();
    }
    INGOT_CHECK(row.n_members == planned.cut.n);
    row.in_file += n_bytes;
    return row.files.back();
  }

  void name_files() {
    // In the order of the keys, whatever order they were opened in.
    std::vector<std::uint32_t> new_index(plan_.files.size());
    std::vector<PlannedFile> files;
    for (const auto& [key, row] : rows_) {
      for (std::size_t i = 0; i < row.files.size(); ++i) {
        new_index[row.files[i]] = static_cast<std::uint32_t>(files.size());
        files.push_back(named_file(key, row, i));
      }
    }
    plan_.files = std::move(files);
    for (PlannedPlace& place : plan_.places) place.file = new_index[place.file];
  }

  PlannedFile named_file(const Key& key, const Row& row, std::size_t index) const {
    const shard::Topology& topology = slicing_.topology;
    const auto& [stage, owner, ep] = key;
    PlannedFile file;
    for (std::uint32_t member = 0; member < row.n_members; ++member) {
      const std::string name = fmt::format(
          "{}{}-{:05}-of-{:05}.safetensors",
          topology.pp == 1 ? "" : fmt::format("pp-{}-", padded_number(stage, topology.pp)),
          set_name(owner, ep, member, row.n_members), index + 1, row.files.size());
      if (member == 0) file.name = name;
      PlannedFile::Member& at = file.members.emplace_back();
      for (std::uint32_t rank = 0; rank < topology.n_ranks(); ++rank) {
        const RankPosition position = topology.position(rank);
        if (position.stage == stage && owns(position, owner, ep, member, row.n_members))
          at.ranks.push_back(rank);
      }
      INGOT_CHECK(!at.ranks.empty());
      at.path = fmt::format("{}/{}",
                            shard::rank_directory_name(at.ranks.front(), topology.n_ranks()), name);
    }
    return file;
  }

  std::string set_name(Owner owner, std::uint32_t ep, std::uint32_t member,
                       std::uint32_t n_members) const {
    const shard::Topology& topology = slicing_.topology;
    switch (owner) {
      case Owner::kAll:
        return "all";
      case Owner::kTp:
        return "tp-" + padded_number(member, n_members);
      case Owner::kKvHeads:
        return "kv-" + padded_number(member, n_members);
      case Owner::kExpert: {
        const std::string slice = "etp-" + padded_number(member, n_members);
        if (topology.ep == 1) return slice;
        const std::string experts = "ep-" + padded_number(ep, topology.ep);
        return n_members == 1 ? experts : experts + "-" + slice;
      }
    }
    return {};
  }

  bool owns(const RankPosition& position, Owner owner, std::uint32_t ep, std::uint32_t member,
            std::uint32_t n_members) const {
    if (owner == Owner::kExpert && position.ep_rank != ep) return false;
    const shard::TensorCut cut{.owner = owner, .n = n_members};
    return cut.slice_of(position, slicing_.topology) == member;
  }

  Plan& plan_;
  const shard::Slicing& slicing_ = *plan_.slicing;
  const std::uint64_t max_bytes_ = plan_.options.shards.max_shard_bytes.value_or(kRankFileBytes);
  std::map<Key, Row> rows_;
};

}  // namespace

constexpr LayoutFunctions kRanksLayout{.assign_files = [](Plan& plan) { RowAssigner(plan).run(); }};

}  // namespace ingot::convert
