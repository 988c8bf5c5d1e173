#include "tests/check/rule_fixture.h"

namespace ingot::testing {

using formats::DType;
using formats::SchemeId;
using formats::Shape;
using enum ErrorCode;

namespace {

const auto kInt8Blocks = spelled("deepseek", SchemeId::kInt8Block, formats::Activations::kDynamic);

EditableCheckpoint make_fp8_in_blocks_of_64() {
  EditableCheckpoint checkpoint = make_plain();
  const Spelled blocks = {"deepseek", SchemeId::kFp8Block, formats::Activations::kDynamic};
  for (const std::string& name : spelled_weights(make_plain(), blocks)) {
    const Shape shape = checkpoint.at(name).shape;
    checkpoint.put_zeros(name, DType::kF8E4M3, shape);
    checkpoint.put_floats(name + "_scale_inv", {(shape[0] + 63) / 64, (shape[1] + 63) / 64}, 1);
  }
  checkpoint.config["quantization_config"] = {
      {"activation_scheme", "dynamic"}, {"quant_method", "fp8"}, {"weight_block_size", {64, 64}}};
  return checkpoint;
}

EditableCheckpoint make_qwen() {
  return make_synthetic([](auto& options) { options.family = formats::find_family("qwen3_moe"); });
}

}  // namespace

void make_weight_plain(EditableCheckpoint& checkpoint, const std::string& name) {
  checkpoint.put_zeros(name, DType::kBf16, checkpoint.at(name).shape);
  checkpoint.tensors.erase(name + "_scale_inv");
  checkpoint.tensors.erase(name + "_scale");
}

std::vector<RuleFixture> native_fixtures() {
  const std::string o_proj = kAttention + "o_proj.weight";
  const std::string up_proj = kDense + "up_proj.weight";
  return {
      {.rule = "fp8.config-present",
       .code = kNotFound,
       .damage = [](EditableCheckpoint& c) { c.config.erase("quantization_config"); }},
      {.rule = "fp8.config-without-weights",
       .code = kMismatch,
       .make = make_plain,
       .damage =
           [](EditableCheckpoint& c) {
             c.config["quantization_config"] = {{"activation_scheme", "dynamic"},
                                                {"fmt", "e4m3"},
                                                {"quant_method", "fp8"},
                                                {"weight_block_size", {128, 128}}};
           }},
      {.rule = "fp8.activation-scheme",
       .code = kNotFound,
       .damage = [](EditableCheckpoint& c) { quantization(c).erase("activation_scheme"); }},
      {.rule = "fp8.block-size",
       .code = kCorrupt,
       .damage = [](EditableCheckpoint& c) { quantization(c).erase("weight_block_size"); }},
      {.rule = "fp8.weight-quantized",
       .code = kDtypeMismatch,
       .damage = [=](EditableCheckpoint& c) { make_weight_plain(c, o_proj); }},
      {.rule = "fp8.plain-module",
       .code = kDtypeMismatch,
       .damage =
           [](EditableCheckpoint& c) {
             put_spelled(c, kMtp + "eh_proj.weight",
                         {"deepseek", SchemeId::kFp8Block, formats::Activations::kDynamic});
           }},
      // No list, and a list that vLLM does not look at beside its own.
      {.rule = "fp8.silent-module",
       .code = kMismatch,
       .make = make_qwen,
       .damage =
           [](EditableCheckpoint& c) {
             quantization(c).erase("ignored_layers");
             quantization(c).erase("modules_to_not_convert");
           }},
      {.rule = "fp8.silent-module",
       .code = kMismatch,
       .make = make_qwen,
       .damage = [](EditableCheckpoint& c) { quantization(c)["ignored_layers"] = {"lm_head"}; }},
      {.rule = "fp8.head-listed",
       .code = kMismatch,
       .damage =
           [=](EditableCheckpoint& c) {
             make_weight_plain(c, o_proj);
             quantization(c)["modules_to_not_convert"] = {kAttention + "o_proj"};
           }},
      // Weights that have one scale each, under the promise of blocks.
      {.rule = "fp8.block-size",
       .code = kMismatch,
       .make = spelled("deepseek", SchemeId::kFp8Tensor, formats::Activations::kDynamic),
       .damage =
           [](EditableCheckpoint& c) {
             quantization(c)["weight_block_size"] = {128, 128};
           }},
      {.rule = "fp8.block-128", .code = kUnsupported, .make = make_fp8_in_blocks_of_64},
      {.rule = "fp8.weight-dtype",
       .code = kUnsupported,
       .damage = [=](EditableCheckpoint& c) { c.at(o_proj).dtype = DType::kF8E5M2; }},
      {.rule = "fp8.scale-present",
       .code = kMissingTensor,
       .damage = [=](EditableCheckpoint& c) { c.tensors.erase(o_proj + "_scale_inv"); }},
      {.rule = "fp8.scale-dtype",
       .code = kDtypeMismatch,
       .damage =
           [=](EditableCheckpoint& c) {
             const std::string name = o_proj + "_scale_inv";
             c.put_zeros(name, DType::kF16, c.at(name).shape);
           }},
      {.rule = "fp8.scale-shape",
       .code = kShapeMismatch,
       .damage =
           [=](EditableCheckpoint& c) {
             Shape& shape = c.at(up_proj + "_scale_inv").shape;
             std::swap(shape[0], shape[1]);
           }},
      {.rule = "fp8.scale-values",
       .code = kBadScale,
       .damage =
           [=](EditableCheckpoint& c) {
             const std::string name = up_proj + "_scale_inv";
             c.put_floats(name, c.at(name).shape, 0);
           }},
      {.rule = "fp8.scale-values",
       .code = kBadScale,
       .make = spelled("compressed-tensors", SchemeId::kFp8Channel, formats::Activations::kDynamic),
       .damage =
           [=](EditableCheckpoint& c) {
             const std::string name = up_proj + "_scale";
             c.put_floats(name, c.at(name).shape, -1);
           }},
      {.rule = "fp8.ue8m0-claim",
       .code = kMismatch,
       .damage = [](EditableCheckpoint& c) { quantization(c)["scale_fmt"] = "ue8m0"; }},
      {.rule = "fp8.ue8m0-unsaid",
       .code = kNotFound,
       .damage =
           [=](EditableCheckpoint& c) {
             for (auto& [name, tensor] : c.tensors) {
               const Shape shape = tensor.shape;
               if (name.ends_with("_scale_inv"))
                 c.put_floats(name, shape, name.starts_with(o_proj) ? 0x1p-11F : 0x1p-12F);
             }
           }},
      {.rule = "fp8.format-words",
       .code = kMismatch,
       .damage = [](EditableCheckpoint& c) { quantization(c)["fmt"] = "e5m2"; }},
      {.rule = "fp8.format-words",
       .code = kMismatch,
       .damage = [](EditableCheckpoint& c) { quantization(c)["scale_fmt"] = "f32"; }},
      {.rule = "native.ignored-quantized",
       .code = kMismatch,
       .damage =
           [](EditableCheckpoint& c) {
             quantization(c)["modules_to_not_convert"] = {"lm_head", kAttention + "o_proj"};
           }},
      {.rule = "native.ignored-quantized",
       .code = kMismatch,
       .make = kInt8Blocks,
       .damage =
           [](EditableCheckpoint& c) { quantization(c)["ignored_layers"].push_back("up_proj"); }},
      {.rule = "fp8.nan-code",
       .code = kNonFinite,
       .damage = [=](EditableCheckpoint& c) { c.at(up_proj).bytes[12345] = std::byte{0xFF}; }},
      {.rule = "fp8.nan-code",
       .code = kNonFinite,
       .make = spelled("compressed-tensors", SchemeId::kMxfp8, formats::Activations::kWeightOnly),
       .damage = [=](EditableCheckpoint& c) { c.at(up_proj).bytes[5] = std::byte{0x7F}; }},
      {.rule = "fp8.merged-partition",
       .code = kShapeMismatch,
       .make = [] { return make_synthetic([](auto& o) { o.moe_intermediate = 144; }); }},
      {.rule = "int8-block.config-without-weights",
       .code = kMismatch,
       .make = make_plain,
       .damage =
           [](EditableCheckpoint& c) {
             c.config["quantization_config"] = {{"activation_scheme", "dynamic"},
                                                {"quant_method", "blockwise_int8"},
                                                {"weight_block_size", {128, 128}}};
           }},
      {.rule = "int8-block.activation-scheme",
       .code = kUnsupported,
       .make = kInt8Blocks,
       .damage = [](EditableCheckpoint& c) { quantization(c)["activation_scheme"] = "static"; }},
      {.rule = "int8-block.block-size",
       .code = kCorrupt,
       .make = kInt8Blocks,
       .damage = [](EditableCheckpoint& c) { quantization(c).erase("weight_block_size"); }},
      {.rule = "int8-block.weight-quantized",
       .code = kDtypeMismatch,
       .make = kInt8Blocks,
       .damage = [=](EditableCheckpoint& c) { make_weight_plain(c, o_proj); }},
      {.rule = "int8-block.plain-module",
       .code = kDtypeMismatch,
       .make = kInt8Blocks,
       .damage =
           [](EditableCheckpoint& c) {
             put_spelled(c, kMtp + "eh_proj.weight",
                         {"deepseek", SchemeId::kInt8Block, formats::Activations::kDynamic});
           }},
  };
}

}  // namespace ingot::testing
