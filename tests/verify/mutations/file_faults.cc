#include <cstdint>
#include <fstream>

#include "formats/base/fd.h"
#include "formats/container/bfloat16.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/verify/mutations/edited_weights.h"
#include "tests/verify/mutations/fault.h"

namespace ingot::testing {

namespace fs = std::filesystem;

namespace {

constexpr const char* kFirst = "model-00001-of-00002.safetensors";
constexpr const char* kSecond = "model-00002-of-00002.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr std::string_view kExpertUpWeight = "model.layers.2.mlp.experts.3.up_proj.weight";

void truncate_file(const Pair& pair) {
  const fs::path path = pair.output / kSecond;
  std::string bytes = read_text_file(path, 1 << 30);
  bytes.resize(bytes.size() - 100);
  fs::remove(path);
  write_bytes(path, bytes);
}

// A row less, and a header that says so.
void truncate_tensor(const Pair& pair) {
  EditedWeights weights(pair.output);
  for (const std::string& name :
       {std::string(kExpertUpWeight), std::string(kExpertUpWeight) + "_scale"}) {
    EditedTensor& tensor = weights.at(name);
    tensor.bytes.resize(tensor.bytes.size() / tensor.shape[0] * (tensor.shape[0] - 1));
    --tensor.shape[0];
  }
  weights.save();
}

void name_other_file_in_index(const Pair& pair) {
  edit_json(pair.output / kIndex, [](formats::Json& index) {
    formats::Json& file = index.at("weight_map").at(std::string(kExpertUpWeight));
    file = file == kFirst ? kSecond : kFirst;
  });
}

void name_absent_tensor_in_index(const Pair& pair) {
  edit_json(pair.output / kIndex, [](formats::Json& index) {
    index.at("weight_map")["model.layers.2.mlp.experts.16.up_proj.weight"] = kFirst;
  });
}

void drop_name_from_index(const Pair& pair) {
  edit_json(pair.output / kIndex, [](formats::Json& index) {
    index.at("weight_map").erase(std::string(kExpertUpWeight));
  });
}

void leave_old_shard(const Pair& pair) {
  fs::copy_file(pair.output / kFirst, pair.output / "model-00003-of-00003.safetensors");
}

void exchange_two_ids(const Pair& pair) {
  edit_json(pair.output / "tokenizer.json", [](formats::Json& tokenizer) {
    formats::Json& words = tokenizer.at("model").at("vocab");
    std::swap(words.at("Ġthe"), words.at("in"));
  });
}

void add_file(const Pair& pair, const char* name, std::string_view text) {
  std::ofstream(pair.output / name) << text;
}

}  // namespace

std::vector<Fault> file_faults() {
  return {
      {"chat_template_added", Good::kInt8,
       [](const Pair& pair) { add_file(pair, "chat_template.jinja", "{{ messages[0].content }}"); },
       "chat_template.jinja"},
      {"added_tokens_added", Good::kBf16,
       [](const Pair& pair) { add_file(pair, "added_tokens.json", R"({"<x>": 5})"); },
       "added_tokens.json"},
      {"special_tokens_map_added", Good::kNvfp4Ct,
       [](const Pair& pair) {
         add_file(pair, "special_tokens_map.json", R"({"eos_token": "the"})");
       },
       "special_tokens_map.json"},
      {"adapter_added", Good::kFp8,
       [](const Pair& pair) { add_file(pair, "adapter_config.json", R"({"r": 8})"); },
       "adapter_config.json"},
      {"file_truncated", Good::kInt8, truncate_file, kSecond},
      {"tensor_truncated", Good::kInt8, truncate_tensor, kExpertUpWeight},
      {"stale_index_names_another_file", Good::kInt8, name_other_file_in_index, kExpertUpWeight},
      {"stale_index_names_an_absent_tensor", Good::kBf16, name_absent_tensor_in_index,
       "model.layers.2.mlp.experts.16.up_proj.weight"},
      {"stale_index_lacks_a_tensor", Good::kNvfp4Modelopt, drop_name_from_index, kExpertUpWeight},
      {"stray_old_shard", Good::kInt8, leave_old_shard, "model-00003-of-00003.safetensors"},
      {"tokenizer_of_another_model", Good::kInt8, exchange_two_ids, "tokenizer.json"},
      {"tokenizer_missing", Good::kNvfp4Ct,
       [](const Pair& pair) { fs::remove(pair.output / "tokenizer.json"); }, "tokenizer.json"},
      in_json("generation_config_changed", Good::kBf16, "generation_config.json",
              "generation_config.json", [](auto& config) { config["temperature"] = 0.123; })};
}

namespace {

constexpr std::string_view kExperts = "model.layers.2.mlp.experts.";

// Parts of modules below two prefixes, one by one.
template <typename Pairwise>
void for_each_twin(const Pair& pair, const std::string& a, const std::string& b,
                   const Pairwise& pairwise) {
  EditedWeights weights(pair.output);
  for (const std::string& name : weights.names(a))
    pairwise(weights, name, b + name.substr(a.size()));
  weights.save();
}

void exchange(const Pair& pair, const std::string& a, const std::string& b) {
  for_each_twin(pair, a, b, [](EditedWeights& weights, const auto& first, const auto& second) {
    weights.exchange(first, second);
  });
}

std::string expert(int number, const char* projection = "") {
  return std::string(kExperts) + std::to_string(number) + "." + projection;
}

void exchange_gate_and_up(const Pair& pair) {
  exchange(pair, expert(3, "gate_proj."), expert(3, "up_proj."));
}

void exchange_experts(const Pair& pair) {
  exchange(pair, expert(3), expert(9));
}

void copy_expert(const Pair& pair) {
  for_each_twin(pair, expert(9), expert(3),
                [](EditedWeights& weights, const auto& from, const auto& to) {
                  weights.at(to).bytes = weights.read(from).bytes;
                });
}

void exchange_layers(const Pair& pair) {
  exchange(pair, "model.layers.2.", "model.layers.3.");
}

void replace_norm(const Pair& pair) {
  EditedWeights weights(pair.output);
  weights.at("model.layers.2.input_layernorm.weight").bytes =
      weights.read("model.layers.3.input_layernorm.weight").bytes;
  weights.save();
}

// Rows of query head 5, of 32 + 16 values.
void zero_head(const Pair& pair) {
  constexpr std::size_t kHeadRows = 48;
  EditedWeights weights(pair.output);
  EditedTensor& query = weights.at("model.layers.2.self_attn.q_b_proj.weight");
  const std::size_t head_bytes = query.bytes.size() / query.shape[0] * kHeadRows;
  query.bytes.replace(5 * head_bytes, head_bytes, head_bytes, '\0');
  weights.save();
}

}  // namespace

std::vector<Fault> module_faults() {
  return {
      {"gate_and_up_swapped", Good::kInt8, exchange_gate_and_up, kExperts},
      {"gate_and_up_swapped_in_nvfp4", Good::kNvfp4Modelopt, exchange_gate_and_up, kExperts},
      {"experts_weights_under_anothers_name", Good::kInt8, copy_expert, kExperts},
      {"experts_weights_under_anothers_name_in_nvfp4", Good::kNvfp4Ct, copy_expert, kExperts},
      {"two_experts_swapped", Good::kInt8, exchange_experts, kExperts},
      {"two_experts_swapped_in_mxfp4", Good::kMxfp4, exchange_experts, kExperts},
      {"a_layers_norm_replaced", Good::kNvfp4Modelopt, replace_norm,
       "model.layers.2.input_layernorm.weight"},
      {"one_attention_head_zeroed", Good::kBf16, zero_head, "model.layers.2.self_attn.q_b_proj"},
      {"one_attention_head_zeroed_in_int8", Good::kInt8, zero_head,
       "model.layers.2.self_attn.q_b_proj"},
      {"two_layers_exchanged", Good::kInt8, exchange_layers, "model.layers.2."},
      {"two_layers_exchanged_in_nvfp4", Good::kNvfp4Ct, exchange_layers, "model.layers.2."}};
}

namespace {

// Every BF16 number of the model.
template <int Percent>
void multiply_bf16(const Pair& pair) {
  constexpr float kFactor = static_cast<float>(Percent) / 100;
  EditedWeights weights(pair.output);
  for (const std::string& name : weights.names()) {
    if (weights.read(name).dtype != formats::DType::kBf16) continue;
    weights.at(name).map<std::uint16_t>([](std::uint16_t value) {
      return formats::bf16_from_float(formats::float_from_bf16(value) * kFactor);
    });
  }
  weights.save();
}

// Every F32 scale that multiplies.
template <int Percent>
void multiply_scales(const Pair& pair, const char* suffix) {
  constexpr float kFactor = static_cast<float>(Percent) / 100;
  EditedWeights weights(pair.output);
  for (const std::string& name : weights.names("", suffix)) {
    if (weights.read(name).dtype != formats::DType::kF32) continue;
    weights.at(name).map<float>([](float scale) { return scale * kFactor; });
  }
  weights.save();
}

// Which of them are among the worst is left open.
constexpr std::string_view kAny = "model.layers.";

}  // namespace

std::vector<Fault> model_faults() {
  return {{"every_weight_times_1_01", Good::kBf16, multiply_bf16<101>, kAny},
          {"every_weight_times_2", Good::kBf16, multiply_bf16<200>, kAny},
          {"every_int8_weight_times_1_01", Good::kInt8,
           [](const Pair& pair) { multiply_scales<101>(pair, ".weight_scale"); }, kAny},
          {"every_int8_weight_times_2", Good::kInt8,
           [](const Pair& pair) { multiply_scales<200>(pair, ".weight_scale"); }, kAny},
          {"every_nvfp4_weight_times_1_01", Good::kNvfp4Modelopt,
           [](const Pair& pair) { multiply_scales<101>(pair, ".weight_scale_2"); }, kAny},
          {"every_nvfp4_weight_times_2", Good::kNvfp4Modelopt,
           [](const Pair& pair) { multiply_scales<200>(pair, ".weight_scale_2"); }, kAny},
          {"every_fp8_weight_times_2", Good::kFp8,
           [](const Pair& pair) { multiply_scales<200>(pair, ".weight_scale_inv"); }, kAny}};
}

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

// Both shards have the same names: each is edited in a directory of its own.
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
