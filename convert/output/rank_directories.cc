#include "convert/output/rank_directories.h"

#include <algorithm>
#include <map>

#include "convert/output/tensor_records.h"
#include "convert/plan/passes.h"
#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/container/checkpoint_index.h"
#include "formats/json/json.h"

namespace ingot::convert {

using formats::RankRecord;
using formats::SlicingRecord;
using formats::TensorRecord;

namespace {

RankRecord::Experts experts_of(const shard::ExpertMap& map, std::uint32_t layer,
                               std::uint32_t ep_rank) {
  const auto held = map.experts_of(layer, ep_rank);
  const auto slots = map.slots_of(layer, ep_rank);
  return {
      .layer = layer, .held = {held.begin(), held.end()}, .slots = {slots.begin(), slots.end()}};
}

bool holds_role(const Plan& plan, const std::vector<RankFile>& files, formats::Role role) {
  return std::any_of(files.begin(), files.end(), [&](const RankFile& file) {
    const auto& parts = plan.files[file.file].parts;
    return std::any_of(parts.begin(), parts.end(), [&](const PartRef& at) {
      return role_of(plan.tensor_of(plan.tensors[at.tensor])) == role;
    });
  });
}

}  // namespace

std::vector<RankFile> files_of_rank(const Plan& plan, std::uint32_t rank) {
  std::vector<RankFile> files;
  for (std::uint32_t f = 0; f < plan.files.size(); ++f) {
    const auto& members = plan.files[f].members;
    for (std::uint32_t m = 0; m < members.size(); ++m) {
      if (!std::binary_search(members[m].ranks.begin(), members[m].ranks.end(), rank)) continue;
      files.push_back({.name = std::filesystem::path(members[m].path).filename().string(),
                       .file = f,
                       .member = m});
    }
  }
  return files;
}

std::string rank_index_text(const Plan& plan, std::uint32_t rank) {
  formats::CheckpointIndex index;
  index.frame = index_frame(plan);
  std::uint64_t total = 0;
  for (const RankFile& file : files_of_rank(plan, rank)) {
    const PlannedFile& planned = plan.files[file.file];
    for (const PartRef& at : planned.parts)
      index.weight_map.emplace_back(plan.part_name(plan.tensors[at.tensor], at.part), file.name);
    total += planned.n_bytes - planned.header_bytes;
  }
  return formats::checkpoint_index_text(index, total);
}

SlicingRecord slicing_record(const Plan& plan, Hash128 job) {
  const shard::Slicing& slicing = *plan.slicing;
  SlicingRecord record;
  record.tp = slicing.topology.tp;
  record.ep = slicing.topology.ep;
  record.etp = slicing.topology.etp;
  record.pp = slicing.topology.pp;
  record.n_ranks = slicing.topology.n_ranks();
  record.shared_experts = std::string(shard::shared_experts_name(slicing.shared));
  record.tp_fit = std::string(shard::tp_fit_name(slicing.fit));
  record.stage_layers = slicing.stages.first;
  record.expert_map = slicing.experts.to_json();
  record.job = job;
  return record;
}

SlicingRecord rank_slicing_record(const Plan& plan, const SlicingRecord& slicing,
                                  std::uint32_t rank) {
  SlicingRecord record = slicing;
  const formats::ModelConfig& config = plan.source.config();
  const shard::RankPosition at = plan.slicing->topology.position(rank);
  const std::vector<RankFile> files = files_of_rank(plan, rank);
  RankRecord& of_rank = record.rank.emplace();
  of_rank.rank = at.rank;
  of_rank.stage = at.stage;
  of_rank.tp_rank = at.tp_rank;
  of_rank.ep_rank = at.ep_rank;
  of_rank.etp_rank = at.etp_rank;
  of_rank.first_layer = plan.slicing->stages.first[at.stage];
  of_rank.end_layer = plan.slicing->stages.first[at.stage + 1];
  if (at.stage + 1 == plan.slicing->topology.pp)
    of_rank.end_layer += static_cast<std::uint32_t>(config.num_nextn_predict_layers);
  // Stages tell, not names: a family may have rows for neither embedding nor norm.
  of_rank.has_embedding = at.stage == 0 || holds_role(plan, files, formats::Role::kEmbedding);
  of_rank.has_head = at.stage + 1 == plan.slicing->topology.pp;
  const shard::ExpertMap& experts = plan.slicing->experts;
  if (config.n_routed_experts > 0) {
    if (experts.is_uniform()) {
      of_rank.experts.push_back(experts_of(experts, 0, at.ep_rank));
      of_rank.experts.back().layer = RankRecord::Experts::kEveryLayer;
    } else {
      for (std::uint32_t layer = of_rank.first_layer; layer < of_rank.end_layer; ++layer) {
        if (layer < config.layer_is_moe.size() && !config.layer_is_moe[layer]) continue;
        of_rank.experts.push_back(experts_of(experts, layer, at.ep_rank));
      }
    }
  }
  if (!plan.json.whole_config.empty())
    of_rank.whole_config = formats::parse_json(plan.json.whole_config, "config.json");
  return record;
}

std::vector<TensorRecord> rank_records(const Plan& plan, std::uint32_t rank,
                                       const std::vector<TensorResult>& done) {
  std::map<std::uint32_t, std::map<std::uint8_t, formats::TensorHash>> outputs;
  for (const RankFile& file : files_of_rank(plan, rank)) {
    for (const PartRef& at : plan.files[file.file].parts) {
      const PlannedTensor& planned = plan.tensors[at.tensor];
      const PlannedSlice slice = slice_at(plan, planned, at, file.member);
      outputs[at.tensor].emplace(
          at.part, output_hash(plan, planned, at.part, slice, done[at.tensor], file.name));
    }
  }
  std::vector<TensorRecord> records;
  records.reserve(outputs.size());
  for (auto& [item, parts] : outputs) {
    const PlannedTensor& planned = plan.tensors[item];
    TensorRecord& record = records.emplace_back(record_of(plan, planned, TensorResult{}));
    record.original_global = done[item].original_global;
    record.home_file = unsliced_file(plan, planned, formats::Part::kWeight);
    for (auto& [part, entry] : parts) record.output.push_back(std::move(entry));
  }
  return records;
}

}  // namespace ingot::convert
