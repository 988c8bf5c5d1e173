#include "convert/plan/deal_files.h"

#include <algorithm>
#include <map>
#include <tuple>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/container/checkpoint_index.h"

namespace ingot::convert {

using formats::Checkpoint;
using formats::LogicalTensor;
using shard::Owner;
using shard::RankPosition;
using shard::Slicing;

namespace {

// Ranks load several files at once, and a hub file is no larger.
constexpr std::uint64_t kRankFileBytes = 5'000'000'000;

void set_places(Plan& plan, PlannedPart& part, std::span<const PlannedPlace> places) {
  part.first_place = static_cast<std::uint32_t>(plan.places.size());
  part.n_places = static_cast<std::uint32_t>(places.size());
  plan.places.insert(plan.places.end(), places.begin(), places.end());
}

void add_file(Plan& plan, std::string name) {
  PlannedFile& file = plan.files.emplace_back();
  file.members.push_back({.path = name, .ranks = {}});
  file.name = std::move(name);
}

// Keeps the distribution of the source: each part goes where its stored tensor was, a new one
// beside its weight. Files that would be empty vanish. Joined slices go where they were before they
// were cut; false when that is not known.
bool deal_as_source(const Checkpoint& source, Plan& plan) {
  std::map<std::string, std::uint32_t> homes;  // names, and later indices into Plan::files
  const auto home = [&](const PlannedTensor& item, std::size_t p) {
    return home_file(source, item, item.parts[p].part);
  };
  for (const PlannedTensor& item : plan.tensors) {
    for (std::size_t p = 0; p < item.n_parts; ++p) homes.emplace(home(item, p), 0);
  }
  if (homes.contains("")) return false;
  for (auto& [name, index] : homes) {
    index = static_cast<std::uint32_t>(plan.files.size());
    add_file(plan, name);
  }
  for (PlannedTensor& item : plan.tensors) {
    for (std::size_t p = 0; p < item.n_parts; ++p) {
      const PlannedPlace place{.file = homes.at(home(item, p))};
      set_places(plan, item.parts[p], std::span(&place, 1));
    }
  }
  return true;
}

// The hub's rule: tensors in source order; a new file when the next would exceed the limit. Parts
// stay together.
void deal_by_size(Plan& plan, std::uint64_t max_bytes) {
  std::uint64_t in_file = 0;
  std::uint32_t file = 0;
  for (PlannedTensor& item : plan.tensors) {
    if (item.n_parts == 0) continue;
    std::uint64_t n_bytes = 0;
    for (std::size_t part = 0; part < item.n_parts; ++part) n_bytes += item.parts[part].n_bytes;
    if (in_file > 0 && in_file + n_bytes > max_bytes) {
      ++file;
      in_file = 0;
    }
    in_file += n_bytes;
    const PlannedPlace place{.file = file};
    for (std::size_t part = 0; part < item.n_parts; ++part)
      set_places(plan, item.parts[part], std::span(&place, 1));
  }
  for (std::uint64_t i = 0; i <= file; ++i)
    add_file(plan, formats::shard_file_name(i + 1, std::uint64_t{file} + 1));
}

std::string padded_number(std::uint32_t number, std::uint32_t total) {
  const std::size_t width = std::max<std::size_t>(2, std::to_string(total).size());
  return fmt::format("{:0{}}-of-{:0{}}", number, width, total, width);
}

// EP ranks that hold a tensor; empty: it is not an expert's, or there is one group.
std::vector<std::uint32_t> ep_ranks_of(const LogicalTensor& tensor, const shard::TensorCut& cut,
                                       const Slicing& slicing, std::uint32_t n_experts) {
  if (cut.owner != Owner::kExpert || slicing.topology.ep == 1) return {};
  const std::uint32_t layer = tensor.layer.value_or(0);
  if (tensor.expert) return slicing.experts.ranks_of(layer, *tensor.expert);
  const bool is_stack = tensor.shape.size() == 3;
  if (!is_stack) return slicing.experts.ranks_of(layer, n_experts);  // the shared one, in a slot
  std::vector<std::uint32_t> all(slicing.topology.ep);
  for (std::uint32_t rank = 0; rank < all.size(); ++rank) all[rank] = rank;
  return all;
}

// Rows of congruent files, one for each set of ranks that own the same slices.
class RowDealer {
 public:
  RowDealer(const Checkpoint& source, Plan& plan, std::uint64_t max_bytes)
      : source_(source), plan_(plan), slicing_(*plan.slicing), max_bytes_(max_bytes) {}

  void run() {
    for (PlannedTensor& item : plan_.tensors) {
      if (item.n_parts > 0) deal(item);
    }
    name_files();
  }

 private:
  // Stage, owner, EP rank: ordered as the files are to stand.
  using Key = std::tuple<std::uint32_t, Owner, std::uint32_t>;
  struct Row {
    std::uint32_t n_members = 1;
    std::vector<std::uint32_t> files;
    std::uint64_t in_file = 0;
  };

  void deal(PlannedTensor& item) {
    const LogicalTensor& tensor = source_.tensors()[item.tensor];
    const auto n_experts = static_cast<std::uint32_t>(source_.config().n_routed_experts);
    const std::vector<std::uint32_t> ep_ranks = ep_ranks_of(tensor, item.cut, slicing_, n_experts);
    const bool is_stack = item.cut.owner == Owner::kExpert && tensor.shape.size() == 3;
    std::vector<PlannedPlace> places;
    for (const std::uint32_t stage : shard::stages_of(tensor, source_, slicing_)) {
      if (ep_ranks.empty()) {
        places.push_back(
            {.file = open_file(item, {stage, owner_of(item.cut), 0}, PlannedPlace::kAllExperts)});
      }
      for (const std::uint32_t ep : ep_ranks) {
        const std::uint32_t share = is_stack ? ep : PlannedPlace::kAllExperts;
        if (is_stack && slicing_.experts.experts_of(*tensor.layer, ep).empty()) continue;
        places.push_back(
            {.file = open_file(item, {stage, Owner::kExpert, ep}, share), .ep_rank = share});
      }
    }
    for (std::size_t p = 0; p < item.n_parts; ++p) set_places(plan_, item.parts[p], places);
  }

  // Whoever holds every expert and cuts them as everything else is cut is no set of its own.
  Owner owner_of(const shard::TensorCut& cut) const {
    if (cut.owner != Owner::kExpert) return cut.owner;
    if (slicing_.topology.etp == 1) return Owner::kAll;
    return slicing_.topology.etp == slicing_.topology.tp ? Owner::kTp : Owner::kExpert;
  }

  std::uint32_t open_file(const PlannedTensor& item, const Key& key, std::uint32_t share) {
    Row& row = rows_[key];
    std::uint64_t n_bytes = 0;
    for (std::size_t p = 0; p < item.n_parts; ++p)
      n_bytes += plan_.deal(source_, item, p, share).slice_bytes();
    if (row.files.empty() || (row.in_file > 0 && row.in_file + n_bytes > max_bytes_)) {
      row.files.push_back(static_cast<std::uint32_t>(plan_.files.size()));
      row.n_members = item.cut.n;
      row.in_file = 0;
      plan_.files.emplace_back();
    }
    INGOT_CHECK(row.n_members == item.cut.n);
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

  const Checkpoint& source_;
  Plan& plan_;
  const Slicing& slicing_;
  const std::uint64_t max_bytes_;
  std::map<Key, Row> rows_;
};

// model{i}-mp{N}.safetensors: everything that a rank loads, replicas included, in one file.
void deal_to_native(const Checkpoint& source, Plan& plan) {
  const Slicing& slicing = *plan.slicing;
  const std::uint32_t n_ranks = slicing.topology.n_ranks();
  for (std::uint32_t rank = 0; rank < n_ranks; ++rank) {
    add_file(plan, fmt::format("model{}-mp{}.safetensors", rank, n_ranks));
    plan.files.back().members.front().ranks = {rank};
  }
  const auto n_experts = static_cast<std::uint32_t>(source.config().n_routed_experts);
  for (PlannedTensor& item : plan.tensors) {
    const LogicalTensor& tensor = source.tensors()[item.tensor];
    std::vector<PlannedPlace> places;
    for (const std::uint32_t ep : ep_ranks_of(tensor, item.cut, slicing, n_experts))
      places.push_back({.file = ep});
    if (places.empty()) {
      for (std::uint32_t rank = 0; rank < n_ranks; ++rank)
        places.push_back({.file = rank, .first_slice = item.cut.n == 1 ? 0 : rank});
    }
    for (std::size_t p = 0; p < item.n_parts; ++p) set_places(plan, item.parts[p], places);
  }
}

}  // namespace

void deal_files(const Checkpoint& source, const PlanOptions& options, Plan& plan) {
  const auto& max_bytes = options.shards.max_shard_bytes;
  if (plan.layout->name == "deepseek-mp") {
    deal_to_native(source, plan);
  } else if (plan.is_sliced()) {
    RowDealer(source, plan, max_bytes.value_or(kRankFileBytes)).run();
  } else if (max_bytes) {
    deal_by_size(plan, *max_bytes);
  } else if (!deal_as_source(source, plan)) {
    deal_by_size(plan, kRankFileBytes);
  }
  for (PlannedFile& file : plan.files) {
    file.first_member = plan.n_members;
    plan.n_members += static_cast<std::uint32_t>(file.members.size());
  }
}

}  // namespace ingot::convert
