#include "tests/check/rule_fixture.h"

namespace ingot::testing {

using formats::Activations;
using formats::Json;
using formats::SchemeId;
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
      {.rule = "ct.scale-shape",
       .code = kShapeMismatch,
       .make = kInt8,
       .damage = [=](EditableCheckpoint& c) { c.at(o_proj + "_scale").shape.pop_back(); }},
      {.rule = "ct.config-group-keys",
       .code = kUnsupported,
       .make = kInt8,
       .damage = [](EditableCheckpoint& c) { group(c)["weights"]["scale_format"] = nullptr; }},
      {.rule = "ct.config-group-keys",
       .code = kUnsupported,
       .make = kInt8,
       .damage = [](EditableCheckpoint& c) { group(c)["weight_format"] = "int-quantized"; }},
      {.rule = "ct.format-known",
       .code = kUnsupported,
       .make = kInt8,
       .damage =
           [](EditableCheckpoint& c) {
             quantization(c)["format"] = "int8-quantized";
             group(c).erase("format");
           }},
      {.rule = "ct.format-agrees",
       .code = kMismatch,
       .make = kInt8,
       .damage =
           [](EditableCheckpoint& c) {
             quantization(c)["format"] = group(c)["format"] = "float-quantized";
           }},
      {.rule = "ct.format-agrees",
       .code = kMismatch,
       .make = kInt8,
       .damage = [](EditableCheckpoint& c) { quantization(c)["format"] = "float-quantized"; }},
      // No target, the wrong group, taken in by ignore, an expression that is none.
      {.rule = "ct.targets",
       .code = kMismatch,
       .make = kInt8,
       .damage =
           [](EditableCheckpoint& c) {
             group(c)["targets"] = {"re:.*mlp.*", "re:.*[qk].*_proj$"};
           }},
      {.rule = "ct.targets",
       .code = kMismatch,
       .make = kInt8,
       .damage =
           [](EditableCheckpoint& c) {
             Json fp8 = group(c);
             fp8["weights"]["type"] = "float";
             fp8["format"] = "float-quantized";
             fp8["targets"] = {"re:.*o_proj$"};
             quantization(c)["config_groups"]["group_1"] = fp8;
             quantization(c)["format"] = "mixed-precision";
           }},
      {.rule = "ct.targets",
       .code = kMismatch,
       .make = kInt8,
       .damage = [](EditableCheckpoint& c) { ignore_also(c, "re:.*o_proj$"); }},
      {.rule = "ct.targets",
       .code = kCorrupt,
       .make = kInt8,
       .damage = [](EditableCheckpoint& c) { ignore_also(c, "re:(unclosed"); }},
      {.rule = "ct.ignore",
       .code = kMismatch,
       .make = kInt8,
       .damage = [=](EditableCheckpoint& c) { make_weight_plain(c, o_proj); }},
      {.rule = "ct.ignore-never-quantized",
       .code = kMismatch,
       .make = kInt8,
       .damage = [](EditableCheckpoint& c) { quantization(c)["ignore"].erase(0); }},
      // vLLM builds this family's router with the quantization config.
      {.rule = "ct.ignore",
       .code = kMismatch,
       .make = make_qwen,
       .damage = [](EditableCheckpoint& c) { quantization(c)["ignore"].erase(1); }},
      {.rule = "ct.mtp-names",
       .code = kMismatch,
       .make = kInt8,
       .damage =
           [](EditableCheckpoint& c) {
             make_weight_plain(c, kMtp + "self_attn.o_proj.weight");
             ignore_also(c, kMtp + "self_attn.o_proj");
           }},
      {.rule = "ct.joined-scales",
       .code = kShapeMismatch,
       .make = spelled("compressed-tensors", SchemeId::kFp8Tensor, Activations::kStatic),
       .damage =
           [](EditableCheckpoint& c) { c.at(kAttention + "q_a_proj.input_scale").shape = {1}; }},
      // What llm-compressor writes when nobody tells it to ignore the router, the head, ...
      {.rule = "ct.plain-module", .code = kDtypeMismatch, .make = make_all_int8},
      {.rule = "ct.static-input-scale",
       .code = kMissingTensor,
       .make = spelled("compressed-tensors", SchemeId::kInt8Channel, Activations::kStatic),
       .damage = [](EditableCheckpoint& c) { c.tensors.erase(kAttention + "o_proj.input_scale"); }},
      {.rule = "ct.static-input-scale",
       .code = kMissingTensor,
       .make = spelled("compressed-tensors", SchemeId::kNvfp4, Activations::kStatic),
       .damage =
           [](EditableCheckpoint& c) { c.tensors.erase(kDense + "down_proj.input_global_scale"); }},
      {.rule = "ct.activations",
       .code = kMismatch,
       .make = kInt8,
       .damage = [](EditableCheckpoint& c) { group(c)["input_activations"]["num_bits"] = 4; }},
      {.rule = "ct.activations",
       .code = kMismatch,
       .make = kInt8,
       .damage = [](EditableCheckpoint& c) { group(c)["input_activations"]["symmetric"] = false; }},
      {.rule = "ct.activations",
       .code = kMismatch,
       .make = spelled("compressed-tensors", SchemeId::kNvfp4, Activations::kStatic),
       .damage = [](EditableCheckpoint& c) { group(c)["input_activations"]["group_size"] = 32; }},
      {.rule = "ct.activations",
       .code = kMismatch,
       .make = spelled("compressed-tensors", SchemeId::kFp8Block, Activations::kDynamic),
       .damage =
           [](EditableCheckpoint& c) { group(c)["input_activations"]["strategy"] = "channel"; }},
      {.rule = "ct.arguments",
       .code = kMismatch,
       .make = kInt8,
       .damage = [](EditableCheckpoint& c) { group(c)["weights"]["group_size"] = 128; }},
      {.rule = "ct.arguments",
       .code = kMismatch,
       .make = kInt8,
       .damage = [](EditableCheckpoint& c) { group(c)["weights"]["actorder"] = "group"; }},
      {.rule = "ct.arguments",
       .code = kMismatch,
       .make = kInt8,
       .damage =
           [](EditableCheckpoint& c) {
             group(c)["output_activations"] = {{"num_bits", 8}, {"type", "int"}};
           }},
      {.rule = "ct.arguments",
       .code = kMismatch,
       .make = spelled("compressed-tensors", SchemeId::kNvfp4, Activations::kWeightOnly),
       .damage = [](EditableCheckpoint& c) { group(c)["weights"]["scale_dtype"] = "torch.uint8"; }},
      {.rule = "ct.transforms",
       .code = kUnsupported,
       .make = kInt8,
       .damage =
           [](EditableCheckpoint& c) {
             quantization(c)["transform_config"] = {
                 {"config_groups", {{"R1", {{"type", "hadamard"}}}}}};
           }},
      {.rule = "quantized.cache-scales",
       .code = kMissingTensor,
       .make = kInt8,
       .damage =
           [](EditableCheckpoint& c) {
             quantization(c)["kv_cache_scheme"] = {
                 {"num_bits", 8}, {"type", "float"}, {"strategy", "tensor"}, {"dynamic", false}};
           }},
      {.rule = "quantized.known-keys",
       .code = kUnsupported,
       .make = kInt8,
       .damage = [](EditableCheckpoint& c) { quantization(c)["surprise"] = 1; }},
  };
}

}  // namespace ingot::testing
