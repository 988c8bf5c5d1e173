#include "inference/parallel/rank_view.h"

#include "formats/base/error.h"
#include "formats/json/json.h"
#include "formats/records/manifest.h"
#include "shard/cut/slicing.h"

namespace ingot::inference {

namespace {

Range part(std::size_t rank, std::size_t size, std::size_t count, std::string_view what) {
  INGOT_CHECK(size > 0 && rank < size);
  if (count % size != 0)
    throw Error(ErrorCode::kUnsupported, "{}: {} do not divide among {} ranks", what, count, size);
  return {.first = count / size * rank, .count = count / size};
}

// The allowances of the conversion were checked when it was made.
shard::ExpertMap recorded_map(const formats::SlicingRecord& slicing,
                              const formats::ModelConfig& config) {
  return shard::ExpertMap::parse(formats::json_text(*slicing.expert_map), formats::kManifestName,
                                 {.n_experts = static_cast<std::uint32_t>(config.n_routed_experts),
                                  .has_shared = config.n_shared_experts > 0,
                                  .ep = slicing.ep,
                                  .allow_redundant = true,
                                  .allow_uneven = true});
}

}  // namespace

RankView rank_view(const formats::Checkpoint& source) {
  const formats::SlicingRecord* slicing = source.slicing();
  if (slicing == nullptr) return {};
  RankView view = {
      .topology = {.tp = slicing->tp, .ep = slicing->ep, .etp = slicing->etp, .pp = slicing->pp},
      .rank = slicing->rank->rank,
      .stages = {.first = slicing->stage_layers},
      .shared_is_whole = shard::parse_shared_experts(slicing->shared_experts) ==
                         shard::SharedExperts::kReplicated};
  if (!slicing->expert_map.is_null()) view.experts = recorded_map(*slicing, source.config());
  return view;
}

GroupPlace group_place(const shard::Topology& topology, std::uint32_t rank, Group group) {
  const std::size_t in_stage = topology.ranks_per_stage();
  // Ranks of a group of these are adjacent, and such groups fill a stage.
  const auto block = [&](std::size_t size) {
    return GroupPlace{.index = rank / size, .rank = rank % size, .size = size};
  };
  switch (group) {
    case Group::kTensor:
      return block(topology.tp);
    case Group::kExpert:
      return block(std::size_t{topology.ep} * topology.etp);
    case Group::kPipeline:
      return {.index = rank % in_stage, .rank = rank / in_stage, .size = topology.pp};
    case Group::kWorld:
      return block(topology.n_ranks());
  }
  return {};
}

Range tensor_part(const RankView& rank, std::size_t count, std::string_view what) {
  return part(rank.tp_rank(), rank.tp_size(), count, what);
}

Range key_head_part(const RankView& rank, std::size_t count) {
  if (count < rank.tp_size() && count > 0 && rank.tp_size() % count == 0) {
    return {.first = rank.tp_rank() * count / rank.tp_size(), .count = 1};
  }
  return part(rank.tp_rank(), rank.tp_size(), count, "key heads");
}

Range expert_part(const RankView& rank, std::size_t count) {
  return part(rank.at().etp_rank, rank.topology.etp, count, "inner features of an expert");
}

Range stage_part(const RankView& rank, std::size_t count) {
  const std::vector<std::uint32_t>& first = rank.stages.first;
  if (rank.stages.count() != rank.n_stages() || (!first.empty() && first.back() != count)) {
    throw Error(ErrorCode::kUnsupported,
                "{} layers in {} stages: the stages given are {}, of {} layers", count,
                rank.n_stages(), rank.stages.count(),
                first.empty() ? std::uint32_t{0} : first.back());
  }
  if (first.empty()) return {.first = 0, .count = count};
  const std::size_t stage = rank.stage();
  return {.first = first[stage], .count = first[stage + 1] - first[stage]};
}

shard::ExpertMap expert_places(const RankView& rank, std::size_t count) {
  if (rank.experts) return *rank.experts;
  return shard::ExpertMap::contiguous(static_cast<std::uint32_t>(count), rank.topology.ep);
}

}  // namespace ingot::inference
