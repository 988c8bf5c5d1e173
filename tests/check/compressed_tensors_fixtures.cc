#include "tests/check/rule_fixture.h"

namespace ingot::testing {

using namespace formats;
using enum ErrorCode;

namespace {

const auto kInt8 = spelled("compressed-tensors", SchemeId::kInt8Channel, Activations::kDynamic);

Json& group(EditableCheckpoint& checkpoint) {
  return quantization(checkpoint)["config_groups"]["group_0"];
}

void ignore_also(EditableCheckpoint& checkpoint, const std::string& entry) {
  quantization(checkpoint)["ignore"].push_back(entry);
}

EditableCheckpoint make_qwen() {
  return make_spelled({"compressed-tensors", SchemeId::kInt8Channel, Activations::kDynamic},
                      [](auto& options) { options.family = formats::find_family("qwen3_moe"); });
}

/// Every linear layer is quantized, and nothing ignored.
EditableCheckpoint make_all_int8() {
  const Spelled int8 = {"compressed-tensors", SchemeId::kInt8Channel, Activations::kDynamic};
  EditableCheckpoint checkpoint = make_spelled(int8);
  for (const char* name :
       {"lm_head.weight", "model.layers.1.mlp.gate.weight", "model.layers.2.mlp.gate.weight",
        "model.layers.2.eh_proj.weight", "model.layers.2.shared_head.head.weight"}) {
    put_spelled(checkpoint, name, int8);
  }
  quantization(checkpoint)["ignore"] = {"re:.*indexer.*(wk|weights_proj)$"};
  return checkpoint;
}

}  // namespace

std::vector<RuleFixture> compressed_tensors_fixtures() {
  const std::string o_proj = kAttention + "o_proj.weight";
  return {
      {"ct.scale-shape", kShapeMismatch, kInt8,
       [=](auto& c) { c.at(o_proj + "_scale").shape.pop_back(); }},
      {"ct.config-group-keys", kUnsupported, kInt8,
       in_quantization({{"/config_groups/group_0/weights/scale_format", nullptr}})},
      {"ct.config-group-keys", kUnsupported, kInt8,
       in_quantization({{"/config_groups/group_0/weight_format", "int-quantized"}})},
      {"ct.format-known", kUnsupported, kInt8,
       in_quantization({{"/format", "int8-quantized"}, {"/config_groups/group_0/format"}})},
      {"ct.format-agrees", kMismatch, kInt8,
       [](auto& c) { quantization(c)["format"] = group(c)["format"] = "float-quantized"; }},
      {"ct.format-agrees", kMismatch, kInt8, in_quantization({{"/format", "float-quantized"}})},
      // No target, the wrong group, taken in by ignore, an expression that is none.
      {"ct.targets", kMismatch, kInt8,
       in_quantization({{"/config_groups/group_0/targets", {"re:.*mlp.*", "re:.*[qk].*_proj$"}}})},
      {"ct.targets", kMismatch, kInt8,
       [](auto& c) {
         Json fp8 = group(c);
         fp8["weights"]["type"] = "float";
         fp8["format"] = "float-quantized";
         fp8["targets"] = {"re:.*o_proj$"};
         quantization(c)["config_groups"]["group_1"] = fp8;
         quantization(c)["format"] = "mixed-precision";
       }},
      {"ct.targets", kMismatch, kInt8, [](auto& c) { ignore_also(c, "re:.*o_proj$"); }},
      {"ct.targets", kCorrupt, kInt8, [](auto& c) { ignore_also(c, "re:(unclosed"); }},
      {"ct.ignore", kMismatch, kInt8, [=](auto& c) { make_weight_plain(c, o_proj); }},
      {"ct.ignore-never-quantized", kMismatch, kInt8, in_quantization({{"/ignore/0"}})},
      // vLLM builds this family's router with the quantization config.
      {"ct.ignore", kMismatch, make_qwen, in_quantization({{"/ignore/1"}})},
      {"ct.mtp-names", kMismatch, kInt8,
       [](auto& c) {
         make_weight_plain(c, kMtp + "self_attn.o_proj.weight");
         ignore_also(c, kMtp + "self_attn.o_proj");
       }},
      {"ct.joined-scales", kShapeMismatch,
       spelled("compressed-tensors", SchemeId::kFp8Tensor, Activations::kStatic),
       [](auto& c) { c.at(kAttention + "q_a_proj.input_scale").shape = {1}; }},
      // What llm-compressor writes when nobody tells it to ignore the router, the head, ...
      {"ct.plain-module", kDtypeMismatch, make_all_int8},
      {"ct.static-input-scale", kMissingTensor,
       spelled("compressed-tensors", SchemeId::kInt8Channel, Activations::kStatic),
       [](auto& c) { c.tensors.erase(kAttention + "o_proj.input_scale"); }},
      {"ct.static-input-scale", kMissingTensor,
       spelled("compressed-tensors", SchemeId::kNvfp4, Activations::kStatic),
       [](auto& c) { c.tensors.erase(kDense + "down_proj.input_global_scale"); }},
      {"ct.activations", kMismatch, kInt8,
       in_quantization({{"/config_groups/group_0/input_activations/num_bits", 4}})},
      {"ct.activations", kMismatch, kInt8,
       in_quantization({{"/config_groups/group_0/input_activations/symmetric", false}})},
      {"ct.activations", kMismatch,
       spelled("compressed-tensors", SchemeId::kNvfp4, Activations::kStatic),
       in_quantization({{"/config_groups/group_0/input_activations/group_size", 32}})},
      {"ct.activations", kMismatch,
       spelled("compressed-tensors", SchemeId::kFp8Block, Activations::kDynamic),
       in_quantization({{"/config_groups/group_0/input_activations/strategy", "channel"}})},
      {"ct.arguments", kMismatch, kInt8,
       in_quantization({{"/config_groups/group_0/weights/group_size", 128}})},
      {"ct.arguments", kMismatch, kInt8,
       in_quantization({{"/config_groups/group_0/weights/actorder", "group"}})},
      {"ct.arguments", kMismatch, kInt8,
       in_quantization(
           {{"/config_groups/group_0/output_activations", {{"num_bits", 8}, {"type", "int"}}}})},
      {"ct.arguments", kMismatch,
       spelled("compressed-tensors", SchemeId::kNvfp4, Activations::kWeightOnly),
       in_quantization({{"/config_groups/group_0/weights/scale_dtype", "torch.uint8"}})},
      {"ct.transforms", kUnsupported, kInt8,
       in_quantization(
           {{"/transform_config", {{"config_groups", {{"R1", {{"type", "hadamard"}}}}}}}})},
      {"quantized.cache-scales", kMissingTensor, kInt8,
       in_quantization(
           {{"/kv_cache_scheme",
             {{"num_bits", 8}, {"type", "float"}, {"strategy", "tensor"}, {"dynamic", false}}}})},
      {"quantized.known-keys", kUnsupported, kInt8, in_quantization({{"/surprise", 1}})},
  };
}

}  // namespace ingot::testing
