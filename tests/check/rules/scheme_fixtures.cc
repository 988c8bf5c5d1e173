#include <limits>

#include "formats/family/families.h"
#include "tests/check/rules/rule_fixture.h"

namespace ingot::testing {

using namespace formats;
using enum ErrorCode;

namespace {

const auto kNvfp4 = spelled("compressed-tensors", SchemeId::kNvfp4, Activations::kWeightOnly);
const auto kMxfp4 = spelled("compressed-tensors", SchemeId::kMxfp4, Activations::kWeightOnly);

/// DeepSeek-V4 as NVIDIA releases it.
EditableCheckpoint make_v4_nvfp4() {
  return EditableCheckpoint::load(INGOT_SOURCE_DIR "/tests/golden/families/deepseek_v4_nvfp4");
}

/// Queries, keys and values of linear attention in one weight.
EditableCheckpoint make_fused() {
  return EditableCheckpoint::load(INGOT_SOURCE_DIR "/tests/golden/families/qwen3_5_moe_fp8");
}

std::vector<RuleFixture> fused_fixtures() {
  return {{"quantized.fused-scales",
           kShapeMismatch,
           make_fused,
           [](auto& c) {
             const std::string module = "model.language_model.layers.0.linear_attn.in_proj_qkv.";
             c.tensors.erase(module + "weight_scale_inv");
             c.put_floats(module + "weight_scale", {3}, 1);
           },
           {"quantized.scheme-held", "quantized.one-scheme", "quantized.part-names",
            "fp8.weight-quantized", "fp8.merged-partition"}}};
}

std::vector<RuleFixture> int8_fixtures() {
  const std::string scale = kAttention + "o_proj.weight_scale";
  return {
      {"int8.scale-present", kMissingTensor, kInt8, [=](auto& c) { c.tensors.erase(scale); }},
      {"int8.scale-dtype", kDtypeMismatch, kInt8,
       [=](auto& c) { c.put_zeros(scale, DType::kI32, c.at(scale).shape); }},
      {"int8.scale-shape", kShapeMismatch, kInt8,
       [=](auto& c) { std::swap(c.at(scale).shape[0], c.at(scale).shape[1]); }},
      {"int8.scale-values", kBadScale, kInt8,
       [=](auto& c) { c.put_floats(scale, c.at(scale).shape, 0); }},
      {"int8.scale-values", kBadScale,
       spelled("modelslim", SchemeId::kInt8Channel, Activations::kStatic),
       [](auto& c) {
         const std::string deq = kAttention + "o_proj.deq_scale";
         c.put_floats(deq, c.at(deq).shape, std::numeric_limits<float>::infinity());
       }},
      {"int8.scale-values", kBadScale,
       spelled("modelslim", SchemeId::kInt8Channel, Activations::kStatic),
       [](auto& c) {
         c.put_floats(kAttention + "o_proj.input_offset", {1},
                      std::numeric_limits<float>::quiet_NaN());
       }},
      {"int8.scale-values", kBadScale,
       spelled("modelslim", SchemeId::kInt8Channel, Activations::kDynamic),
       [](auto& c) {
         const std::string offset = kAttention + "o_proj.weight_offset";
         c.put_floats(offset, c.at(offset).shape, std::numeric_limits<float>::infinity());
       }},
  };
}

std::vector<RuleFixture> nvfp4_fixtures() {
  const std::string stem = kDense + "down_proj.";
  const std::string scale = stem + "weight_scale";
  const std::string global = stem + "weight_global_scale";
  const auto set_global = [](const std::string& name, float value) {
    return [=](auto& c) { c.put_floats(name, c.at(name).shape, value); };
  };
  const auto set_scale = [=](unsigned code) {
    return [=](auto& c) { c.at(scale).bytes[1] = static_cast<std::byte>(code); };
  };
  return {
      {"nvfp4.parts", kMissingTensor, kNvfp4, [=](auto& c) { c.tensors.erase(global); }},
      {"nvfp4.parts", kMissingTensor, kModeloptNvfp4, [=](auto& c) { c.tensors.erase(scale); }},
      {"nvfp4.dtypes", kDtypeMismatch, kNvfp4,
       [=](auto& c) { c.put_floats(scale, c.at(scale).shape, 1); }},
      {"nvfp4.columns", kShapeMismatch,
       [] {
         return make_spelled({"compressed-tensors", SchemeId::kNvfp4, Activations::kWeightOnly},
                             [](auto& o) {
                               o.fp8 = false;
                               o.moe_intermediate = 136;
                             });
       }},
      {"nvfp4.scale-shape", kShapeMismatch, kModeloptNvfp4,
       [=](auto& c) { std::swap(c.at(scale).shape[0], c.at(scale).shape[1]); }},
      {"nvfp4.global-one-element", kShapeMismatch, kNvfp4,
       [=](auto& c) { c.put_floats(global, {2}, 4096); }},
      {"nvfp4.global-convention", kMismatch, kNvfp4,
       [=](auto& c) {
         c.tensors.erase(global);
         c.put_floats(stem + "weight_scale_2", {}, 0x1p-12F);
       }},
      {"nvfp4.scale-values", kBadScale, kNvfp4, set_scale(0)},
      {"nvfp4.scale-values", kBadScale, kModeloptNvfp4, set_scale(0x7F)},
      {"nvfp4.scale-values", kBadScale, kNvfp4, set_scale(0xB8)},
      {"nvfp4.global-values", kBadScale, kNvfp4,
       set_global(global, std::numeric_limits<float>::infinity())},
      {"nvfp4.global-values", kBadScale, kModeloptNvfp4, set_global(stem + "weight_scale_2", 0)},
      {"nvfp4.global-values", kBadScale, kNvfp4, set_global(global, 1e-40F), {"nvfp4.reciprocal"}},
      {"nvfp4.global-values",
       kBadScale,
       kModeloptNvfp4,
       [=](auto& c) {
         set_global(stem + "weight_scale_2", 1e38F)(c);
         std::ranges::fill(c.at(scale).bytes, std::byte{0x7E});
       },
       {"nvfp4.reciprocal"}},
      {"nvfp4.fused-global", kMismatch, kNvfp4,
       set_global(kDense + "up_proj.weight_global_scale", 5000)},
      {"nvfp4.fused-global", kMismatch, kModeloptNvfp4,
       set_global(kMoe + "experts.2.gate_proj.weight_scale_2", 0x1p-11F)},
      {"minimax.fused-global", kMismatch,
       spelled("compressed-tensors", SchemeId::kNvfp4, Activations::kStatic),
       [=](auto& c) {
         c.config["quantization_config"] = {{"quant_method", "minimax_m3_nvfp4"}};
         set_global(kDense + "up_proj.weight_global_scale", 5000)(c);
       }},
      {"nvfp4.reciprocal", kBadScale, kModeloptNvfp4, set_global(stem + "weight_scale_2", 4096)},
      {"nvfp4.reciprocal", kBadScale, kNvfp4, set_global(global, 0x1p-12F)},
  };
}

std::vector<RuleFixture> mx_fixtures() {
  const std::string scale = kDense + "down_proj.weight_scale";
  return {
      {"mx.columns", kShapeMismatch,
       [] {
         return make_spelled({"compressed-tensors", SchemeId::kMxfp8, Activations::kWeightOnly},
                             [](auto& o) {
                               o.fp8 = false;
                               o.moe_intermediate = 144;
                             });
       }},
      {"mx.scale-dtype", kDtypeMismatch, kMxfp4,
       [=](auto& c) { c.at(scale).dtype = DType::kF8E8M0; }},
      {"mx.scale-values", kBadScale, kMxfp4,
       [=](auto& c) { c.at(scale).bytes[3] = std::byte{0xFF}; }},
  };
}

std::vector<RuleFixture> int4_fixtures() {
  const auto kInt4 = spelled("compressed-tensors", SchemeId::kInt4Group, Activations::kWeightOnly);
  const std::string stem = kMoe + "experts.1.down_proj.";
  const std::string scale = stem + "weight_scale", shape = stem + "weight_shape";
  const auto group = [](const char* key, Json value) {
    return in_quantization(
        {{std::string("/config_groups/group_0/weights/") + key, std::move(value)}});
  };
  return {
      {"int4.parts", kMissingTensor, kInt4, [=](auto& c) { c.tensors.erase(shape); }},
      {"int4.parts", kMissingTensor, kInt4, [=](auto& c) { c.tensors.erase(scale); }},
      {"int4.dtypes", kDtypeMismatch, kInt4,
       [=](auto& c) { c.put_zeros(scale, DType::kI32, c.at(scale).shape); }},
      {"int4.scale-shape", kShapeMismatch, kInt4,
       [=](auto& c) {
         c.put_floats(scale, {c.at(scale).shape[0], 3}, 1);
       }},
      {"int4.part-shapes", kShapeMismatch, kInt4,
       [=](auto& c) {
         c.put_integers(shape, {1, 2, 3});
       }},
      {"int4.part-shapes", kShapeMismatch, kInt4,
       [=](auto& c) { c.put_zeros(stem + "weight_zero_point", DType::kI32, c.at(scale).shape); }},
      {"int4.scale-values", kBadScale, kInt4,
       [=](auto& c) { c.put_floats(scale, c.at(scale).shape, 0); }},
      {"int4.tables", kCorrupt, kInt4,
       [=](auto& c) {
         c.put_integers(shape, {8, 8});
       }},
      {"ct.targets", kMismatch, kInt4, group("group_size", 64)},
      {"int4.parts", kMissingTensor, kInt4, group("symmetric", false)},
      {"ct.targets", kMismatch, kInt4, group("actorder", "group")},
  };
}

std::vector<RuleFixture> spelling_fixtures() {
  const std::string o_proj = kAttention + "o_proj.weight";
  return {
      {"quantized.config-present", kNotFound, kInt8, in_config({{"/quantization_config"}})},
      {"quantized.config-without-weights", kMismatch, make_plain,
       in_config({{"/quantization_config", kInt8().config["quantization_config"]},
                  {"/quantization_config/ignore", {"re:.*"}}})},
      {"quantized.config-without-weights", kMismatch, make_plain,
       [](auto& c) {
         c.descriptions["hf_quant_config.json"]["quantization"] = {
             {"quant_algo", "FP8"},
             {"kv_cache_quant_algo", nullptr},
             {"exclude_modules", {"lm_head"}}};
       }},
      {"quantized.scheme-held", kUnsupported, make_fp8,
       [=](auto& c) {
         c.tensors.erase(o_proj + "_scale_inv");
         c.put_floats(o_proj + "_scale", {c.at(o_proj).shape[0], 1}, 1);
       }},
      {"quantized.one-scheme", kUnsupported,
       spelled("deepseek", SchemeId::kInt8Block, Activations::kDynamic),
       [=](auto& c) {
         put_spelled(c, o_proj, {"deepseek", SchemeId::kFp8Block, Activations::kDynamic});
       }},
      {"quantized.part-names", kMismatch, make_fp8,
       [=](auto& c) {
         c.tensors[o_proj + "_scale"] = c.at(o_proj + "_scale_inv");
         c.tensors.erase(o_proj + "_scale_inv");
       }},
      {"quantized.part-names", kMismatch, kInt8,
       [=](auto& c) {
         c.put_floats(kAttention + "o_proj.weight_offset", {c.at(o_proj).shape[0], 1}, 0);
       }},
  };
}

}  // namespace

std::vector<RuleFixture> scheme_fixtures() {
  std::vector<RuleFixture> all;
  for (const auto& make : {fused_fixtures, int8_fixtures, int4_fixtures, nvfp4_fixtures,
                           mx_fixtures, spelling_fixtures}) {
    for (RuleFixture& fixture : make()) all.push_back(std::move(fixture));
  }
  return all;
}

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
      {"fp8.config-present", kNotFound, make_fp8, in_config({{"/quantization_config"}})},
      {"fp8.config-without-weights", kMismatch, make_plain,
       in_config({{"/quantization_config",
                   {{"activation_scheme", "dynamic"},
                    {"fmt", "e4m3"},
                    {"quant_method", "fp8"},
                    {"weight_block_size", {128, 128}}}}})},
      {"fp8.activation-scheme", kNotFound, make_fp8, in_quantization({{"/activation_scheme"}})},
      {"fp8.block-size", kCorrupt, make_fp8, in_quantization({{"/weight_block_size"}})},
      {"fp8.weight-quantized", kDtypeMismatch, make_fp8,
       [=](auto& c) { make_weight_plain(c, o_proj); }},
      {"fp8.plain-module", kDtypeMismatch, make_fp8,
       [](auto& c) {
         put_spelled(c, kMtp + "eh_proj.weight",
                     {"deepseek", SchemeId::kFp8Block, formats::Activations::kDynamic});
       }},
      // No list, and a list that vLLM ignores where its own exists.
      {"fp8.silent-module", kMismatch, make_qwen,
       in_quantization({{"/ignored_layers"}, {"/modules_to_not_convert"}})},
      {"fp8.silent-module", kMismatch, make_qwen,
       in_quantization({{"/ignored_layers", {"lm_head"}}})},
      {"fp8.head-listed", kMismatch, make_fp8,
       [=](auto& c) {
         make_weight_plain(c, o_proj);
         quantization(c)["modules_to_not_convert"] = {kAttention + "o_proj"};
       }},
      // Weights that have one scale each, under the promise of blocks.
      {"fp8.block-size", kMismatch,
       spelled("deepseek", SchemeId::kFp8Tensor, formats::Activations::kDynamic),
       in_quantization({{"/weight_block_size", {128, 128}}})},
      {"fp8.static-input-scale", kMissingTensor,
       spelled("deepseek", SchemeId::kFp8Tensor, formats::Activations::kDynamic),
       in_quantization({{"/activation_scheme", "static"}})},
      {"fp8.experts-as-said", kMismatch, make_fp8, in_quantization({{"/store_dtype", "mxfp4"}})},
      {"fp8.block-128", kUnsupported, make_fp8_in_blocks_of_64},
      {"quantized.block-claim",
       kMismatch,
       make_fp8_in_blocks_of_64,
       in_quantization({{"/weight_block_size", {128, 128}}}),
       {"fp8.block-128"}},
      {"quantized.list-names-nothing",
       kMismatch,
       make_fp8,
       in_quantization({{"/modules_to_not_convert", {"transformer.wte"}}}),
       {"fp8.head-listed"}},
      {"fp8.weight-dtype", kUnsupported, make_fp8,
       [=](auto& c) {
         c.at(o_proj).dtype = DType::kF8E5M2;
         std::ranges::fill(c.at(o_proj).bytes, std::byte{0x21});
       }},
      {"fp8.scale-present", kMissingTensor, make_fp8,
       [=](auto& c) { c.tensors.erase(o_proj + "_scale_inv"); }},
      {"fp8.scale-dtype", kDtypeMismatch, make_fp8,
       [=](auto& c) {
         const std::string name = o_proj + "_scale_inv";
         c.put_zeros(name, DType::kF16, c.at(name).shape);
       }},
      {"fp8.scale-shape", kShapeMismatch, make_fp8,
       [=](auto& c) {
         Shape& shape = c.at(up_proj + "_scale_inv").shape;
         std::swap(shape[0], shape[1]);
       }},
      {"fp8.scale-values", kBadScale, make_fp8,
       [=](auto& c) {
         const std::string name = up_proj + "_scale_inv";
         c.put_floats(name, c.at(name).shape, 0);
       }},
      {"fp8.scale-values", kBadScale,
       spelled("compressed-tensors", SchemeId::kFp8Channel, formats::Activations::kDynamic),
       [=](auto& c) {
         const std::string name = up_proj + "_scale";
         c.put_floats(name, c.at(name).shape, -1);
       }},
      {"fp8.ue8m0-claim", kMismatch, make_fp8, in_quantization({{"/scale_fmt", "ue8m0"}})},
      {"fp8.ue8m0-unsaid", kNotFound, make_fp8,
       [=](auto& c) {
         for (auto& [name, tensor] : c.tensors) {
           const Shape shape = tensor.shape;
           if (name.ends_with("_scale_inv"))
             c.put_floats(name, shape, name.starts_with(o_proj) ? 0x1p-11F : 0x1p-12F);
         }
       }},
      {"fp8.format-words", kMismatch, make_fp8, in_quantization({{"/fmt", "e5m2"}})},
      {"fp8.format-words", kMismatch, make_fp8, in_quantization({{"/scale_fmt", "f32"}})},
      {"native.ignored-quantized", kMismatch, make_fp8,
       in_quantization({{"/modules_to_not_convert", {"lm_head", kAttention + "o_proj"}}})},
      {"native.ignored-quantized", kMismatch, kInt8Blocks,
       in_quantization({{"/ignored_layers/-", "up_proj"}})},
      {"native.experts-said",
       kMismatch,
       make_v4_nvfp4,
       in_quantization({{"/moe_quant_algo"}}),
       {"fp8.merged-partition"}},
      {"fp8.nan-code", kNonFinite, make_fp8,
       [=](auto& c) { c.at(up_proj).bytes[12345] = std::byte{0xFF}; }},
      {"fp8.nan-code", kNonFinite,
       spelled("compressed-tensors", SchemeId::kMxfp8, formats::Activations::kWeightOnly),
       [=](auto& c) { c.at(up_proj).bytes[5] = std::byte{0x7F}; }},
      {"fp8.nan-code",
       kNonFinite,
       make_fp8,
       [=](auto& c) {
         c.at(o_proj).dtype = DType::kF8E5M2;
         std::ranges::fill(c.at(o_proj).bytes, std::byte{0x21});
         c.at(o_proj).bytes[99] = std::byte{0x7C};
       },
       {"fp8.weight-dtype"}},
      {"fp8.scale-values",
       kBadScale,
       make_fp8,
       [=](auto& c) {
         c.at(o_proj).dtype = DType::kF8E5M2;
         std::ranges::fill(c.at(o_proj).bytes, std::byte{0x21});
         const std::string name = o_proj + "_scale_inv";
         c.put_floats(name, c.at(name).shape, -1);
       },
       {"fp8.weight-dtype"}},
      {"fp8.merged-partition", kShapeMismatch,
       [] { return make_synthetic([](auto& o) { o.moe_intermediate = 144; }); }},
      {"int8-block.config-without-weights", kMismatch, make_plain,
       in_config({{"/quantization_config",
                   {{"activation_scheme", "dynamic"},
                    {"quant_method", "blockwise_int8"},
                    {"weight_block_size", {128, 128}}}}})},
      {"int8-block.activation-scheme", kUnsupported, kInt8Blocks,
       in_quantization({{"/activation_scheme", "static"}})},
      {"int8-block.block-size", kCorrupt, kInt8Blocks, in_quantization({{"/weight_block_size"}})},
      {"int8-block.weight-quantized", kDtypeMismatch, kInt8Blocks,
       [=](auto& c) { make_weight_plain(c, o_proj); }},
      {"int8-block.plain-module", kDtypeMismatch, kInt8Blocks,
       [](auto& c) {
         put_spelled(c, kMtp + "eh_proj.weight",
                     {"deepseek", SchemeId::kInt8Block, formats::Activations::kDynamic});
       }},
  };
}

}  // namespace ingot::testing
