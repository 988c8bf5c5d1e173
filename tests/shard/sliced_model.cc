#include "tests/shard/sliced_model.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "formats/base/fd.h"
#include "formats/records/manifest.h"
#include "tests/support/tiny_checkpoint.h"

namespace ingot::testing {

using namespace formats;

namespace {

constexpr std::uint64_t kBlock = 128;
constexpr std::uint32_t kExperts = 4, kLayers = 2;

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

bool is_expert(const std::string& name) {
  return contains(name, ".experts.");
}

std::uint32_t expert_of(const std::string& name) {
  return static_cast<std::uint32_t>(std::stoul(name.substr(name.find(".experts.") + 9)));
}

// Nullopt for tensors that every rank has whole.
std::optional<std::size_t> cut_side(const std::string& name) {
  if (is_expert(name)) return std::nullopt;
  for (const char* part :
       {"embed_tokens", "lm_head", "q_b_proj", "kv_b_proj", "gate_proj", "up_proj"}) {
    if (contains(name, part)) return 0;
  }
  for (const char* part : {"o_proj", "down_proj"}) {
    if (contains(name, part)) return 1;
  }
  return std::nullopt;
}

std::uint32_t stage_of(const std::string& name, std::uint32_t pp) {
  if (pp == 1 || contains(name, "embed_tokens") || contains(name, "layers.0.")) return 0;
  return 1;
}

// A tensor as a file of a rank has it.
struct Held {
  std::string file, name;
  NaiveTensor tensor;
  std::optional<SliceRecord> slice;
};

// Files of one directory, its manifest and its records, one for each stored tensor.
class DirectoryWriter {
 public:
  explicit DirectoryWriter(std::filesystem::path directory) : directory_(std::move(directory)) {}

  void add(Held held) {
    TensorRecord record{.name = held.name,
                        .role = "other",
                        .action = "copy",
                        .from = "bf16",
                        .to = "bf16",
                        .source = {},
                        .output = {}};
    record.output.push_back({.name = held.name,
                             .file = held.file,
                             .dtype = held.tensor.dtype,
                             .shape = held.tensor.shape,
                             .hash = {},
                             .slice = held.slice});
    record.home_file =
        contains(held.name, "layers.0.") ? "first.safetensors" : "second.safetensors";
    records_.push_back(std::move(record));
    files_[held.file].push_back(
        {held.name, held.tensor.dtype, held.tensor.shape, held.tensor.data});
  }

  void write(Manifest manifest) {
    for (auto& [name, tensors] : files_) {
      // Records need not be in the order of the files.
      if (name.starts_with("tp-")) std::reverse(tensors.begin(), tensors.end());
      const std::string bytes = safetensors_bytes(tensors);
      write_bytes(directory_ / name, bytes);
      manifest.files.push_back({.name = name, .n_bytes = bytes.size(), .hash = {}, .sha256 = {}});
    }
    manifest.tool_version = "0";
    manifest.family = "deepseek_v3";
    manifest.dialect = "deepseek";
    manifest.n_tensors = records_.size();
    manifest.records_hash =
        formats::write_tensor_records(directory_ / formats::kRecordsName, records_);
    write_bytes(directory_ / formats::kManifestName, formats::manifest_text(manifest));
  }

  void write_index() const {
    formats::Json index = {{"metadata", formats::Json::object()},
                           {"weight_map", formats::Json::object()}};
    for (const auto& [file, tensors] : files_) {
      for (const TinyTensor& tensor : tensors) index["weight_map"][tensor.name] = file;
    }
    write_bytes(directory_ / "model.safetensors.index.json", index.dump());
  }

 private:
  std::filesystem::path directory_;
  std::map<std::string, std::vector<TinyTensor>> files_;
  std::vector<TensorRecord> records_;
};

formats::SlicingRecord slicing_of(const RankOptions& options) {
  formats::SlicingRecord slicing;
  slicing.tp = options.tp;
  slicing.ep = options.ep;
  slicing.etp = 1;
  slicing.pp = options.pp;
  slicing.n_ranks = options.pp * std::lcm(options.tp, options.ep);
  slicing.shared_experts = "tp";
  slicing.tp_fit = "refuse";
  slicing.stage_layers = options.pp == 1 ? std::vector<std::uint32_t>{0, kLayers}
                                         : std::vector<std::uint32_t>{0, 1, kLayers};
  slicing.job = options.job;
  return slicing;
}

formats::RankRecord rank_of(const RankOptions& options, std::uint32_t rank) {
  const std::uint32_t per_stage = std::lcm(options.tp, options.ep);
  formats::RankRecord record;
  record.rank = rank;
  record.stage = rank / per_stage;
  record.tp_rank = rank % per_stage % options.tp;
  record.ep_rank = rank % per_stage % options.ep;
  record.first_layer = options.pp == 1 ? 0 : record.stage;
  record.end_layer = options.pp == 1 ? kLayers : record.stage + 1;
  record.has_embedding = record.stage == 0;
  record.has_head = record.stage + 1 == options.pp;
  formats::RankRecord::Experts& experts = record.experts.emplace_back();
  for (std::uint32_t e = 0; e < kExperts / options.ep; ++e)
    experts.held.push_back(record.ep_rank * (kExperts / options.ep) + e);
  experts.slots = experts.held;
  return record;
}

std::optional<Held> hold(const std::string& name, const NaiveTensor& tensor,
                         const RankOptions& options, const formats::RankRecord& rank) {
  if (stage_of(name, options.pp) != rank.stage) return std::nullopt;
  if (is_expert(name)) {
    const auto& held = rank.experts[0].held;
    const std::uint32_t expert = expert_of(name);
    if (expert < held.front() || expert > held.back()) return std::nullopt;
    return Held{fmt::format("ep-{:02}.safetensors", rank.ep_rank), name, tensor, {}};
  }
  const auto side = cut_side(name);
  if (!side || options.tp == 1) return Held{"all.safetensors", name, tensor, {}};
  SliceRecord slice;
  slice.axis = static_cast<int>(*side);
  slice.whole = tensor.shape;
  slice.offset = tensor.shape[*side] / options.tp * rank.tp_rank;
  return Held{fmt::format("tp-{:02}.safetensors", rank.tp_rank), name,
              naive_slice(tensor, *side, rank.tp_rank, options.tp), slice};
}

}  // namespace

std::string rank_name(std::uint32_t rank, std::uint32_t n_ranks) {
  return fmt::format("rank-{:05}-of-{:05}", rank, n_ranks);
}

SlicedModel small_model(const ModelWidths& widths) {
  constexpr std::uint64_t kVocab = 16, kHidden = 8, kQLora = 6, kKvLora = 4;
  SlicedModel model;
  model.config = {{"architectures", {"DeepseekV3ForCausalLM"}},
                  {"model_type", "deepseek_v3"},
                  {"vocab_size", kVocab},
                  {"hidden_size", kHidden},
                  {"intermediate_size", widths.intermediate},
                  {"moe_intermediate_size", widths.moe_intermediate},
                  {"num_hidden_layers", kLayers},
                  {"num_nextn_predict_layers", 0},
                  {"first_k_dense_replace", 1},
                  {"num_attention_heads", widths.heads},
                  {"q_lora_rank", kQLora},
                  {"kv_lora_rank", kKvLora},
                  {"qk_nope_head_dim", widths.nope},
                  {"qk_rope_head_dim", widths.rope},
                  {"v_head_dim", widths.v},
                  {"n_routed_experts", kExperts},
                  {"n_shared_experts", 1},
                  {"num_experts_per_tok", 1},
                  {"n_group", 1},
                  {"topk_group", 1},
                  {"topk_method", "noaux_tc"}};
  const auto add = [&](const std::string& name, std::vector<std::uint64_t> shape) {
    model.tensors[name] =
        random_tensor("BF16", 2, std::move(shape), static_cast<unsigned>(model.tensors.size()));
  };
  add("model.embed_tokens.weight", {kVocab, kHidden});
  add("model.norm.weight", {kHidden});
  add("lm_head.weight", {kVocab, kHidden});
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    add(layer + "input_layernorm.weight", {kHidden});
    add(layer + "post_attention_layernorm.weight", {kHidden});
    add(layer + "self_attn.q_a_proj.weight", {kQLora, kHidden});
    add(layer + "self_attn.q_a_layernorm.weight", {kQLora});
    add(layer + "self_attn.q_b_proj.weight", {widths.heads * (widths.nope + widths.rope), kQLora});
    add(layer + "self_attn.kv_a_proj_with_mqa.weight", {kKvLora + widths.rope, kHidden});
    add(layer + "self_attn.kv_a_layernorm.weight", {kKvLora});
    add(layer + "self_attn.kv_b_proj.weight", {widths.heads * (widths.nope + widths.v), kKvLora});
    add(layer + "self_attn.o_proj.weight", {kHidden, widths.heads * widths.v});
  }
  const auto add_mlp = [&](const std::string& prefix, std::uint64_t width) {
    add(prefix + "gate_proj.weight", {width, kHidden});
    add(prefix + "up_proj.weight", {width, kHidden});
    add(prefix + "down_proj.weight", {kHidden, width});
  };
  add_mlp("model.layers.0.mlp.", widths.intermediate);
  add("model.layers.1.mlp.gate.weight", {kExperts, kHidden});
  add("model.layers.1.mlp.gate.e_score_correction_bias", {kExperts});
  for (std::uint32_t expert = 0; expert < kExperts; ++expert)
    add_mlp(fmt::format("model.layers.1.mlp.experts.{}.", expert), widths.moe_intermediate);
  add_mlp("model.layers.1.mlp.shared_experts.", widths.moe_intermediate);
  return model;
}

void make_fp8(SlicedModel& model) {
  std::map<std::string, NaiveTensor> scales;
  for (auto& [name, tensor] : model.tensors) {
    const bool is_quantized = contains(name, "_proj") && tensor.shape.size() == 2;
    if (!is_quantized) continue;
    const unsigned seed = static_cast<unsigned>(scales.size()) + 1000;
    tensor = random_tensor("F8_E4M3", 1, tensor.shape, seed);
    scales[name + "_scale_inv"] = random_tensor(
        "F32", 4,
        {(tensor.shape[0] + kBlock - 1) / kBlock, (tensor.shape[1] + kBlock - 1) / kBlock},
        seed + 1000);
  }
  model.tensors.merge(scales);
  model.config["quantization_config"] = {{"activation_scheme", "dynamic"},
                                         {"fmt", "e4m3"},
                                         {"quant_method", "fp8"},
                                         {"weight_block_size", {kBlock, kBlock}}};
}

void write_ranks(const SlicedModel& model, const RankOptions& options,
                 const std::filesystem::path& top) {
  const formats::SlicingRecord slicing = slicing_of(options);
  std::map<std::string, std::filesystem::path> linked;
  for (std::uint32_t r = 0; r < slicing.n_ranks; ++r) {
    const std::filesystem::path directory = top / rank_name(r, slicing.n_ranks);
    DirectoryWriter writer(directory);
    Manifest manifest;
    manifest.layout = "ranks";
    manifest.slicing = slicing;
    manifest.slicing->rank = rank_of(options, r);
    for (const auto& [name, tensor] : model.tensors) {
      if (auto held = hold(name, tensor, options, *manifest.slicing->rank))
        writer.add(std::move(*held));
    }
    std::filesystem::create_directories(directory);
    const std::uint32_t stage = manifest.slicing->rank->stage;
    writer.write(std::move(manifest));
    writer.write_index();
    write_bytes(directory / "config.json", model.config.dump());
    write_bytes(directory / "tokenizer.json", "{}");
    if (!options.links) continue;
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      if (entry.path().extension() != ".safetensors") continue;
      const auto [first, is_new] = linked.try_emplace(
          fmt::format("{} {}", stage, entry.path().filename().string()), entry.path());
      if (is_new) continue;
      std::filesystem::remove(entry.path());
      std::filesystem::create_hard_link(first->second, entry.path());
    }
  }
  if (options.has_top) write_top(options, top);
}

void write_top(const RankOptions& options, const std::filesystem::path& top) {
  Manifest manifest;
  manifest.layout = "ranks";
  manifest.slicing = slicing_of(options);
  for (std::uint32_t r = 0; r < manifest.slicing->n_ranks; ++r) {
    const std::string name = rank_name(r, manifest.slicing->n_ranks);
    const std::string text = read_text_file(top / name / formats::kManifestName, 1 << 20);
    TensorHasher hasher;
    hasher.update(std::as_bytes(std::span(text)));
    manifest.slicing->ranks.push_back({.directory = name, .manifest_hash = hasher.finish()});
  }
  DirectoryWriter(top).write(std::move(manifest));
}

std::string by_deepseek(std::string name) {
  if (name.starts_with("model.")) name.erase(0, 6);
  // In this order: longer words before those that they contain.
  const std::vector<std::pair<std::string, std::string>> words = {
      {"self_attn", "attn"},
      {"mlp", "ffn"},
      {"weight_scale_inv", "scale"},
      {"e_score_correction_bias", "bias"},
      {"embed_tokens", "embed"},
      {"post_attention_layernorm", "ffn_norm"},
      {"input_layernorm", "attn_norm"},
      {"q_a_layernorm", "q_norm"},
      {"kv_a_layernorm", "kv_norm"},
      {"kv_a_proj_with_mqa", "wkv_a"},
      {"kv_b_proj", "wkv_b"},
      {"q_a_proj", "wq_a"},
      {"q_b_proj", "wq_b"},
      {"o_proj", "wo"},
      {"gate_proj", "w1"},
      {"down_proj", "w2"},
      {"up_proj", "w3"},
      {"lm_head", "head"},
  };
  for (const auto& [from, to] : words) {
    if (const std::size_t at = name.find(from); at != std::string::npos)
      name.replace(at, from.size(), to);
  }
  return name;
}

void write_native(const SlicedModel& model, std::uint32_t n_shards, bool has_manifest,
                  const std::filesystem::path& directory) {
  DirectoryWriter writer(directory);
  for (const auto& [name, tensor] : model.tensors) {
    const auto side = cut_side(name);
    for (std::uint32_t i = 0; i < n_shards; ++i) {
      const std::string file = fmt::format("model{}-mp{}.safetensors", i, n_shards);
      if (is_expert(name)) {
        if (expert_of(name) / (kExperts / n_shards) == i)
          writer.add({file, by_deepseek(name), tensor, {}});
      } else if (!side) {
        writer.add({file, by_deepseek(name), tensor, {}});
      } else {
        SliceRecord slice;
        slice.axis = static_cast<int>(*side);
        slice.whole = tensor.shape;
        slice.offset = tensor.shape[*side] / n_shards * i;
        writer.add({file, by_deepseek(name), naive_slice(tensor, *side, i, n_shards), slice});
      }
    }
  }
  std::filesystem::create_directories(directory);
  Manifest manifest;
  manifest.layout = "deepseek-mp";
  manifest.slicing = slicing_of({.tp = n_shards, .ep = n_shards});
  writer.write(std::move(manifest));
  write_bytes(directory / "tokenizer.json", "{}");
  if (has_manifest) return;
  std::filesystem::remove(directory / formats::kManifestName);
  std::filesystem::remove(directory / formats::kRecordsName);
}

}  // namespace ingot::testing
