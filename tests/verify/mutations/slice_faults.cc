#include <cstdint>

#include "tests/support/temp_dir.h"
#include "tests/verify/mutations/edited_weights.h"
#include "tests/verify/mutations/fault.h"

namespace ingot::testing {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kNorm = "model.layers.2.input_layernorm.weight";
constexpr std::string_view kDense = "model.layers.0.mlp.";

fs::path rank_of_int8(const Pair& pair, int rank) {
  return pair.output / ("rank-0000" + std::to_string(rank) + "-of-00002");
}

fs::path rank_of_nvfp4(const Pair& pair, int rank) {
  return pair.output / ("rank-0000" + std::to_string(rank) + "-of-00004");
}

// As if [gate; up], stacked, had been cut in two: the second half of gate where rank 0 has up, the
// first of up where rank 1 has gate.
void cut_up_as_part_of_gate(const Pair& pair) {
  EditedWeights first(rank_of_int8(pair, 0)), second(rank_of_int8(pair, 1));
  for (const char* name : {"weight", "weight_scale"}) {
    std::swap(first.at(std::string(kDense) + "up_proj." + name).bytes,
              second.at(std::string(kDense) + "gate_proj." + name).bytes);
  }
  first.save();
  second.save();
}

void drop_expert(const Pair& pair) {
  const fs::path rank = rank_of_nvfp4(pair, 2);
  drop_tensors(rank, EditedWeights(rank).names("model.layers.3.mlp.experts.9."));
}

void change_replica(const Pair& pair) {
  EditedWeights weights(rank_of_int8(pair, 1));
  EditedTensor& norm = weights.at(std::string(kNorm));
  norm.set<std::uint8_t>(33, norm.get<std::uint8_t>(33) ^ 1U);
  weights.save();
}

void exchange_experts_of_ranks(const Pair& pair) {
  EditedWeights first(rank_of_nvfp4(pair, 0)), third(rank_of_nvfp4(pair, 2));
  const std::string here = "model.layers.3.mlp.experts.1.", there = "model.layers.3.mlp.experts.9.";
  for (const std::string& name : first.names(here))
    std::swap(first.at(name).bytes, third.at(there + name.substr(here.size())).bytes);
  first.save();
  third.save();
}

void replace_by_slice_of_other_rank(const Pair& pair) {
  const EditedWeights first(rank_of_int8(pair, 0));
  EditedWeights second(rank_of_int8(pair, 1));
  const std::string name = "model.layers.2.self_attn.q_b_proj.weight";
  second.at(name).bytes = first.read(name).bytes;
  second.save();
}

void bring_slice_of_other_topology(const Pair& pair) {
  const TempDir directory;
  convert_for_other_topology(directory / "tp4");
  const fs::path file = rank_of_int8(pair, 1) / "tp-01-of-02-00001-of-00001.safetensors";
  fs::remove(file);
  fs::copy_file(directory / "tp4/rank-00001-of-00004/tp-01-of-04-00001-of-00001.safetensors", file);
}

constexpr const char* kShard0 = "model0-mp2.safetensors";
constexpr const char* kShard1 = "model1-mp2.safetensors";

// Names stand in every shard: each is edited where it stands alone.
template <typename Change>
void edit_shards(const Pair& pair, const Change& change) {
  const TempDir directory;
  for (const char* shard : {kShard0, kShard1}) {
    fs::create_directory(directory / shard);
    fs::rename(pair.output / shard, fs::path(directory / shard) / shard);
  }
  EditedWeights first(directory / kShard0), second(directory / kShard1);
  change(first, second);
  first.save();
  second.save();
  for (const char* shard : {kShard0, kShard1})
    fs::copy_file(fs::path(directory / shard) / shard, pair.output / shard);
}

void change_replica_of_shard(const Pair& pair) {
  edit_shards(pair, [](EditedWeights&, EditedWeights& second) {
    EditedTensor& norm = second.at("layers.2.attn_norm.weight");
    norm.set<std::uint8_t>(33, norm.get<std::uint8_t>(33) ^ 1U);
  });
}

void exchange_slices_of_shards(const Pair& pair) {
  edit_shards(pair, [](EditedWeights& first, EditedWeights& second) {
    const char* name = "layers.2.attn.wo.weight";
    std::swap(first.at(name).bytes, second.at(name).bytes);
  });
}

void drop_expert_of_shard(const Pair& pair) {
  edit_shards(pair, [](EditedWeights&, EditedWeights& second) {
    for (const std::string& name : second.names("layers.3.ffn.experts.9.")) second.erase(name);
  });
}

}  // namespace

std::vector<Fault> slice_faults() {
  return {{"up_cut_as_part_of_gate", Good::kInt8Ranks, cut_up_as_part_of_gate, kDense},
          {"expert_missing_on_one_rank", Good::kNvfp4Ranks, drop_expert,
           "model.layers.3.mlp.experts.9."},
          {"replica_differing_by_one_byte", Good::kInt8Ranks, change_replica, kNorm},
          {"experts_of_two_ranks_swapped", Good::kNvfp4Ranks, exchange_experts_of_ranks,
           "model.layers.3.mlp.experts."},
          {"slice_of_another_rank", Good::kInt8Ranks, replace_by_slice_of_other_rank,
           "model.layers.2.self_attn.q_b_proj"},
          {"slice_of_another_topology", Good::kInt8Ranks, bring_slice_of_other_topology,
           "tp-01-of-02-00001-of-00001.safetensors"},
          {"replica_of_a_shard_differing_by_one_byte", Good::kBf16Shards, change_replica_of_shard,
           kNorm},
          {"slices_of_two_shards_swapped", Good::kBf16Shards, exchange_slices_of_shards,
           "model.layers.2.self_attn.o_proj"},
          {"expert_missing_in_a_shard", Good::kBf16Shards, drop_expert_of_shard, "experts.9."},
          in_json("rope_factor_changed_in_the_native_config", Good::kBf16Shards,
                  "inference_config.json", "rope_factor",
                  [](auto& config) { config["rope_factor"] = 40; }),
          {"eps_changed_on_one_rank", Good::kInt8Ranks,
           [](const Pair& pair) {
             edit_json(rank_of_int8(pair, 1) / "config.json",
                       [](auto& config) { config["rms_norm_eps"] = 1e-5; });
           },
           "rms_norm_eps"},
          {"tokenizer_of_another_model_on_one_rank", Good::kInt8Ranks,
           [](const Pair& pair) {
             edit_json(rank_of_int8(pair, 1) / "tokenizer_config.json",
                       [](auto& config) { config["model_max_length"] = 77; });
           },
           "rank-00001-of-00002/tokenizer_config.json"}};
}

}  // namespace ingot::testing
