#include "tests/support/tiny_checkpoint.h"

#include <fstream>
#include <sstream>
#include <stdexcept>

#include "tests/support/listed.h"

namespace ingot::testing {
namespace {

std::uint64_t element_bytes(const std::string& dtype) {
  if (dtype == "F32" || dtype == "I32") return 4;
  if (dtype == "BF16" || dtype == "F16") return 2;
  if (dtype == "I64" || dtype == "F64") return 8;
  return 1;
}

std::uint64_t data_bytes(const TinyTensor& tensor) {
  std::uint64_t n = element_bytes(tensor.dtype);
  for (const std::uint64_t dimension : tensor.shape) n *= dimension;
  return n;
}

}  // namespace

std::vector<TinyTensor> tensors_of(const std::string& text) {
  std::vector<TinyTensor> tensors;
  for (const std::string& row : listed(text)) {
    TinyTensor& tensor = tensors.emplace_back();
    std::istringstream words(row);
    words >> tensor.name >> tensor.dtype;
    for (std::string side; std::getline(words >> std::ws, side, ',');)
      tensor.shape.push_back(std::stoull(side));
  }
  return tensors;
}

std::string safetensors_bytes(const std::vector<TinyTensor>& tensors) {
  std::string header = "{";
  std::string data;
  for (const TinyTensor& tensor : tensors) {
    if (header.size() > 1) header += ",";
    header += "\"" + tensor.name + "\":{\"dtype\":\"" + tensor.dtype + "\",\"shape\":[";
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
      if (i > 0) header += ",";
      header += std::to_string(tensor.shape[i]);
    }
    header += "],\"data_offsets\":[" + std::to_string(data.size()) + ",";
    data += tensor.data.empty() ? std::string(data_bytes(tensor), '\0') : tensor.data;
    header += std::to_string(data.size()) + "]}";
  }
  header += "}";
  std::string bytes;
  for (unsigned shift = 0; shift < 64; shift += 8) {
    bytes += static_cast<char>(static_cast<unsigned char>(header.size() >> shift));
  }
  return bytes + header + data;
}

void write_bytes(const std::filesystem::path& path, std::string_view bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out) throw std::runtime_error("cannot write " + path.string());
}

void TinyCheckpoint::index_files() {
  weight_map.clear();
  for (const auto& [file, tensors] : files) {
    for (const TinyTensor& tensor : tensors) weight_map[tensor.name] = file;
  }
}

void TinyCheckpoint::write(const std::filesystem::path& directory) const {
  std::filesystem::create_directories(directory);
  if (!config.empty()) write_bytes(directory / "config.json", config);
  for (const auto& [file, tensors] : files)
    write_bytes(directory / file, safetensors_bytes(tensors));
  if (weight_map.empty()) return;
  std::string index = "{\"metadata\":{},\"weight_map\":{";
  bool first = true;
  for (const auto& [tensor, file] : weight_map) {
    index += (first ? "\"" : ",\"") + tensor + "\":\"" + file + "\"";
    first = false;
  }
  write_bytes(directory / "model.safetensors.index.json", index + "}}");
}

TinyCheckpoint tiny_deepseek_v3() {
  TinyCheckpoint checkpoint;
  checkpoint.config = R"({
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": 16, "hidden_size": 8,
    "intermediate_size": 12, "moe_intermediate_size": 4, "num_hidden_layers": 2, "num_nextn_predict_layers": 0,
    "first_k_dense_replace": 1, "num_attention_heads": 2, "q_lora_rank": 6, "kv_lora_rank": 4,
    "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 3, "n_routed_experts": 2, "n_shared_experts": 1,
    "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1, "topk_method": "noaux_tc"})";
  auto& tensors = checkpoint.files["model.safetensors"];
  const auto add = [&](const std::string& name, std::vector<std::uint64_t> shape) {
    tensors.push_back({name, "BF16", std::move(shape)});
  };
  add("model.embed_tokens.weight", {16, 8});
  add("model.norm.weight", {8});
  add("lm_head.weight", {16, 8});
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    add(layer + "input_layernorm.weight", {8});
    add(layer + "post_attention_layernorm.weight", {8});
    add(layer + "self_attn.q_a_proj.weight", {6, 8});
    add(layer + "self_attn.q_a_layernorm.weight", {6});
    add(layer + "self_attn.q_b_proj.weight", {12, 6});
    add(layer + "self_attn.kv_a_proj_with_mqa.weight", {6, 8});
    add(layer + "self_attn.kv_a_layernorm.weight", {4});
    add(layer + "self_attn.kv_b_proj.weight", {14, 4});
    add(layer + "self_attn.o_proj.weight", {8, 6});
  }
  add("model.layers.0.mlp.gate_proj.weight", {12, 8});
  add("model.layers.0.mlp.up_proj.weight", {12, 8});
  add("model.layers.0.mlp.down_proj.weight", {8, 12});
  add("model.layers.1.mlp.gate.weight", {2, 8});
  add("model.layers.1.mlp.gate.e_score_correction_bias", {2});
  for (const std::string expert : {"experts.0", "experts.1", "shared_experts"}) {
    add("model.layers.1.mlp." + expert + ".gate_proj.weight", {4, 8});
    add("model.layers.1.mlp." + expert + ".up_proj.weight", {4, 8});
    add("model.layers.1.mlp." + expert + ".down_proj.weight", {8, 4});
  }
  return checkpoint;
}

TinyTensor& tensor_of(TinyCheckpoint& checkpoint, const std::string& name) {
  for (auto& [file, tensors] : checkpoint.files) {
    for (TinyTensor& tensor : tensors) {
      if (tensor.name == name) return tensor;
    }
  }
  throw std::runtime_error("no tensor " + name);
}

void make_fp8(TinyCheckpoint& checkpoint, const std::string& name, const std::string& scale_name) {
  TinyTensor& weight = tensor_of(checkpoint, name);
  weight.dtype = "F8_E4M3";
  std::vector<std::uint64_t> scale_shape = weight.shape;
  scale_shape[scale_shape.size() - 2] = 1;
  scale_shape.back() = 1;
  checkpoint.files.begin()->second.push_back({scale_name, "F32", std::move(scale_shape)});
}

}  // namespace ingot::testing
