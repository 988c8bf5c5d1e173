#include "tests/check/rules/spelled_checkpoint.h"

#include <algorithm>
#include <stdexcept>

#include "formats/family/families.h"
#include "tests/support/temp_dir.h"

namespace ingot::testing {
namespace {

using namespace formats;

constexpr float kScale = 0x1p-12F;
constexpr float kActivationScale = 0x1p-4F;

std::uint64_t ceil_of(std::uint64_t n, std::uint64_t step) {
  return (n + step - 1) / step;
}

bool is_mlp_only(SchemeId scheme) {
  return scheme == SchemeId::kInt4Group || scheme == SchemeId::kNvfp4 ||
         scheme == SchemeId::kMxfp4 || scheme == SchemeId::kMxfp8;
}

Json compressed_tensors_group(const Spelled& spelled) {
  const auto arguments = [](int bits, const char* type, const char* strategy, Json dynamic) {
    return Json{{"num_bits", bits},
                {"type", type},
                {"strategy", strategy},
                {"symmetric", true},
                {"dynamic", std::move(dynamic)},
                {"observer_kwargs", Json::object()},
                {"actorder", nullptr}};
  };
  Json weights, inputs;
  const char* format = "float-quantized";
  const bool is_static = spelled.activations == Activations::kStatic;
  switch (spelled.scheme) {
    case SchemeId::kFp8Block:
      weights = arguments(8, "float", "block", false);
      weights["block_structure"] = {128, 128};
      inputs = arguments(8, "float", "group", true);
      inputs["group_size"] = 128;
      break;
    case SchemeId::kFp8Channel:
      weights = arguments(8, "float", "channel", false);
      inputs = arguments(8, "float", "token", true);
      break;
    case SchemeId::kFp8Tensor:
      weights = arguments(8, "float", "tensor", false);
      inputs = arguments(8, "float", is_static ? "tensor" : "token", !is_static);
      break;
    case SchemeId::kInt8Channel:
      format = "int-quantized";
      weights = arguments(8, "int", "channel", false);
      inputs = arguments(8, "int", is_static ? "tensor" : "token", !is_static);
      break;
    case SchemeId::kNvfp4:
      format = "nvfp4-pack-quantized";
      weights = arguments(4, "float", "tensor_group", false);
      weights["group_size"] = 16;
      inputs = arguments(4, "float", "tensor_group", "local");
      inputs["group_size"] = 16;
      break;
    case SchemeId::kMxfp4:
      format = "mxfp4-pack-quantized";
      weights = arguments(4, "float", "group", false);
      weights["group_size"] = 32;
      inputs = arguments(4, "float", "group", true);
      inputs["group_size"] = 32;
      break;
    case SchemeId::kMxfp8:
      format = "mxfp8-quantized";
      weights = arguments(8, "float", "group", false);
      weights["group_size"] = 32;
      inputs = arguments(8, "float", "group", true);
      inputs["group_size"] = 32;
      break;
    case SchemeId::kInt4Group:
      format = "pack-quantized";
      weights = arguments(4, "int", "group", false);
      weights["group_size"] = 32;
      break;
    default:
      throw std::logic_error("no group for this scheme");
  }
  if (spelled.activations == Activations::kWeightOnly) inputs = nullptr;
  return {{"format", format},
          {"targets", {"Linear"}},
          {"weights", weights},
          {"input_activations", inputs},
          {"output_activations", nullptr}};
}

Json compressed_tensors_block(const Spelled& spelled) {
  const Json group = compressed_tensors_group(spelled);
  Json ignore = {"lm_head", "re:.*mlp\\.gate$", "re:.*eh_proj$", "re:.*shared_head.*",
                 "re:.*indexer\\.(wk|weights_proj)$"};
  if (is_mlp_only(spelled.scheme)) ignore.push_back("re:.*self_attn.*");
  return {{"config_groups", {{"group_0", group}}},
          {"format", group["format"]},
          {"ignore", ignore},
          {"quant_method", "compressed-tensors"},
          {"quantization_status", "compressed"}};
}

const char* modelopt_algo(const Spelled& spelled) {
  if (spelled.scheme == SchemeId::kFp8Tensor) return "FP8";
  if (spelled.scheme == SchemeId::kFp8Channel) return "FP8_PER_CHANNEL_PER_TOKEN";
  if (spelled.scheme == SchemeId::kFp8Block) return "FP8_PB_WO";
  if (spelled.scheme == SchemeId::kMxfp8) return "MXFP8";
  return spelled.activations == Activations::kStatic ? "NVFP4" : "W4A16_NVFP4";
}

void describe_modelopt(EditableCheckpoint& checkpoint, const Spelled& spelled) {
  Json excluded = {"lm_head",      "model.embed_tokens",    "*.mlp.gate",
                   "*.eh_proj",    "*.shared_head*",        "model.layers.2.head",
                   "*.indexer.wk", "*.indexer.weights_proj"};
  if (is_mlp_only(spelled.scheme)) {
    for (const char* entry : {"*.self_attn*", "model.layers.2.mlp.experts*",
                              "model.layers.2.mlp.shared_experts*", "model.decoder.*"})
      excluded.push_back(entry);
  }
  const char* algo = modelopt_algo(spelled);
  checkpoint.config["quantization_config"] = {
      {"quant_method", "modelopt"}, {"quant_algo", algo}, {"ignore", excluded}};
  Json quantization = {
      {"quant_algo", algo}, {"kv_cache_quant_algo", nullptr}, {"exclude_modules", excluded}};
  if (spelled.scheme == SchemeId::kNvfp4) quantization["group_size"] = 16;
  checkpoint.descriptions["hf_quant_config.json"] = {
      {"producer", {{"name", "modelopt"}, {"version", "0.27.0"}}}, {"quantization", quantization}};
}

}  // namespace

EditableCheckpoint make_synthetic(void (*edit)(formats::SynthOptions&)) {
  formats::SynthOptions options;
  options.family = formats::find_family("deepseek_v32");
  options.size = formats::SynthSize::kTiny;
  if (edit != nullptr) edit(options);
  const TempDir dir;
  formats::write_synthetic_checkpoint(dir.path(), options);
  return EditableCheckpoint::load(dir.path());
}

EditableCheckpoint make_plain() {
  static const EditableCheckpoint plain =
      make_synthetic([](formats::SynthOptions& options) { options.fp8 = false; });
  return plain;
}

void put_spelled(EditableCheckpoint& checkpoint, const std::string& name, const Spelled& spelled) {
  const std::string stem = name.substr(0, name.size() - std::string(".weight").size());
  const Shape shape = checkpoint.at(name).shape;
  const std::uint64_t n = shape[0], k = shape[1];
  const Shape blocks = {ceil_of(n, 128), ceil_of(k, 128)};
  const bool is_static = spelled.activations == Activations::kStatic;
  const std::string& dialect = spelled.dialect;
  // SGLang joins those of q_a_proj and kv_a_proj.
  const bool is_joined = stem.ends_with("q_a_proj") || stem.ends_with("kv_a_proj_with_mqa");
  const Shape one = dialect == "compressed-tensors" && !is_joined ? Shape{1} : Shape{};
  switch (spelled.scheme) {
    case SchemeId::kFp8Block:
      checkpoint.put_zeros(name, DType::kF8E4M3, shape);
      checkpoint.put_floats(stem + (dialect == "deepseek" ? ".weight_scale_inv" : ".weight_scale"),
                            dialect == "modelopt" ? Shape{blocks[0], 1, blocks[1], 1} : blocks,
                            kScale);
      return;
    case SchemeId::kInt8Block:
      checkpoint.put_zeros(name, DType::kI8, shape);
      checkpoint.put_floats(stem + ".weight_scale_inv", blocks, kScale);
      return;
    case SchemeId::kFp8Channel:
      checkpoint.put_zeros(name, DType::kF8E4M3, shape);
      checkpoint.put_floats(stem + ".weight_scale", dialect == "modelopt" ? Shape{n} : Shape{n, 1},
                            kScale);
      return;
    case SchemeId::kFp8Tensor: {
      checkpoint.put_zeros(name, DType::kF8E4M3, shape);
      const bool is_mistral = dialect == "deepseek" && is_static;
      checkpoint.put_floats(stem + (is_mistral ? ".weight_scale_inv" : ".weight_scale"), one,
                            kScale);
      if (is_static) {
        checkpoint.put_floats(stem + (is_mistral ? ".activation_scale" : ".input_scale"), one,
                              kActivationScale);
      }
      return;
    }
    case SchemeId::kInt8Channel:
      checkpoint.put_zeros(name, DType::kI8, shape);
      if (dialect == "modelslim" && is_static) {
        checkpoint.put_floats(stem + ".input_scale", {1}, kActivationScale);
        checkpoint.put_floats(stem + ".input_offset", {1}, -3);
        checkpoint.put_zeros(stem + ".quant_bias", DType::kI32, {n});
        checkpoint.put_floats(stem + ".deq_scale", {n}, kScale * kActivationScale);
        return;
      }
      checkpoint.put_floats(stem + ".weight_scale", {n, 1}, kScale);
      if (dialect == "modelslim") {
        checkpoint.put_floats(stem + ".weight_offset", {n, 1}, 0);
      } else if (is_static) {
        checkpoint.put_floats(stem + ".input_scale", one, kActivationScale);
      }
      return;
    case SchemeId::kNvfp4: {
      const bool is_modelopt = dialect == "modelopt";
      checkpoint.tensors.erase(name);
      checkpoint.put_bytes(stem + (is_modelopt ? ".weight" : ".weight_packed"), DType::kU8,
                           {n, k / 2}, 0x21);
      checkpoint.put_bytes(stem + ".weight_scale", DType::kF8E4M3, {n, ceil_of(k, 16)}, 0x38);
      if (is_modelopt) {
        checkpoint.put_floats(stem + ".weight_scale_2", {}, kScale);
        if (is_static) checkpoint.put_floats(stem + ".input_scale", {}, kActivationScale);
      } else {
        checkpoint.put_floats(stem + ".weight_global_scale", {1}, 1 / kScale);
        if (is_static)
          checkpoint.put_floats(stem + ".input_global_scale", {1}, 1 / kActivationScale);
      }
      return;
    }
    case SchemeId::kMxfp4:
      checkpoint.tensors.erase(name);
      checkpoint.put_bytes(stem + ".weight_packed", DType::kU8, {n, k / 2}, 0x21);
      checkpoint.put_bytes(stem + ".weight_scale", DType::kU8, {n, ceil_of(k, 32)}, 115);
      return;
    case SchemeId::kMxfp8:
      checkpoint.put_zeros(name, DType::kF8E4M3, shape);
      checkpoint.put_bytes(stem + ".weight_scale", DType::kU8, {n, ceil_of(k, 32)}, 110);
      return;
    case SchemeId::kInt4Group:
      checkpoint.tensors.erase(name);
      checkpoint.put_bytes(stem + ".weight_packed", DType::kI32, {n, k / 8}, 0x79);
      checkpoint.put_floats(stem + ".weight_scale", {n, k / 32}, kScale);
      checkpoint.put_integers(stem + ".weight_shape",
                              {static_cast<std::int32_t>(n), static_cast<std::int32_t>(k)});
      return;
    default:
      throw std::logic_error("no spelling of this scheme");
  }
}

std::vector<std::string> spelled_weights(const EditableCheckpoint& plain, const Spelled& spelled) {
  std::vector<std::string> weights;
  for (const auto& [name, tensor] : plain.tensors) {
    const bool is_projection = name.ends_with("_proj.weight") ||
                               name.ends_with("kv_a_proj_with_mqa.weight") ||
                               name.ends_with("indexer.wq_b.weight");
    const bool is_plain = name.ends_with("eh_proj.weight") || name.ends_with("weights_proj.weight");
    const bool is_attention = name.find("self_attn") != std::string::npos;
    if (!is_projection || is_plain || (is_attention && is_mlp_only(spelled.scheme))) continue;
    if (spelled.dialect == "modelslim" && name.ends_with("kv_b_proj.weight")) continue;
    // SGLang builds draft models of NVFP4 plain.
    if (spelled.dialect == "modelopt" && is_mlp_only(spelled.scheme) && name.starts_with(kMtp))
      continue;
    weights.push_back(name);
  }
  if (spelled.dialect == "deepseek") {
    for (const auto& [name, tensor] : plain.tensors) {
      if (name.ends_with("indexer.wk.weight") && spelled.scheme == SchemeId::kFp8Block)
        weights.push_back(name);
    }
  }
  return weights;
}

void describe_modelslim(EditableCheckpoint& checkpoint, const std::vector<std::string>& weights,
                        const std::string& type) {
  Json description = {{"model_quant_type", type}, {"version", "1.0.0"}, {"group_size", 0}};
  for (const auto& [name, tensor] : checkpoint.tensors) description[name] = "FLOAT";
  for (const std::string& weight : weights) {
    const std::string stem = weight.substr(0, weight.size() - std::string("weight").size());
    for (const auto& [name, tensor] : checkpoint.tensors) {
      if (name.starts_with(stem)) description[name] = type;
    }
  }
  checkpoint.descriptions["quant_model_description.json"] = description;
}

EditableCheckpoint make_row_scaled(const std::vector<std::string>& grouped) {
  const Spelled groups = {"compressed-tensors", SchemeId::kInt4Group, Activations::kWeightOnly};
  EditableCheckpoint checkpoint = make_spelled(groups);
  for (const std::string& name : spelled_weights(make_plain(), groups)) {
    const bool is_grouped =
        std::any_of(grouped.begin(), grouped.end(),
                    [&](const std::string& part) { return name.find(part) != std::string::npos; });
    const std::string scale = name + "_scale";
    if (!is_grouped) checkpoint.put_floats(scale, {checkpoint.at(scale).shape[0], 1}, kScale);
  }
  Json& config = checkpoint.config["quantization_config"]["config_groups"];
  Json rows = config["group_0"];
  rows["weights"]["strategy"] = "channel";
  rows["weights"]["group_size"] = nullptr;
  if (grouped.empty()) {
    config["group_0"] = rows;
    return checkpoint;
  }
  config["group_0"]["targets"] = Json::array();
  for (const std::string& part : grouped)
    config["group_0"]["targets"].push_back("re:.*" + part + ".*");
  config["group_1"] = rows;
  return checkpoint;
}

EditableCheckpoint make_spelled(const Spelled& spelled, void (*edit)(formats::SynthOptions&)) {
  EditableCheckpoint checkpoint = make_plain();
  if (edit != nullptr) {
    checkpoint = make_synthetic(edit);
    checkpoint.config.erase("quantization_config");
  }
  const std::vector<std::string> weights = spelled_weights(checkpoint, spelled);
  for (const std::string& name : weights) put_spelled(checkpoint, name, spelled);
  if (spelled.dialect == "deepseek") {
    const bool is_int8 = spelled.scheme == SchemeId::kInt8Block;
    checkpoint.config["quantization_config"] = {
        {"activation_scheme", "dynamic"}, {"quant_method", is_int8 ? "blockwise_int8" : "fp8"}};
    if (spelled.scheme != SchemeId::kFp8Tensor)
      checkpoint.config["quantization_config"]["weight_block_size"] = {128, 128};
    // The indexer's wk is joined with a plain weight: it is decoded from FP8 blocks, or plain.
    if (spelled.scheme != SchemeId::kFp8Block) {
      Json ignored = Json::array();
      for (const char* layer : {"0", "1", "2"})
        ignored.push_back(std::string("model.layers.") + layer + ".self_attn.indexer.wk");
      ignored.push_back("model.decoder.self_attn.indexer.wk");
      checkpoint.config["quantization_config"]["ignored_layers"] = ignored;
    }
  } else if (spelled.dialect == "compressed-tensors") {
    checkpoint.config["quantization_config"] = compressed_tensors_block(spelled);
  } else if (spelled.dialect == "modelopt") {
    describe_modelopt(checkpoint, spelled);
  } else if (spelled.dialect == "modelslim") {
    const bool is_static = spelled.activations == Activations::kStatic;
    describe_modelslim(checkpoint, weights, is_static ? "W8A8" : "W8A8_DYNAMIC");
  } else {
    throw std::logic_error("no dialect " + spelled.dialect);
  }
  return checkpoint;
}

}  // namespace ingot::testing
