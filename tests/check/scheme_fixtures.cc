#include <limits>

#include "tests/check/rule_fixture.h"

namespace ingot::testing {

using formats::Activations;
using formats::DType;
using formats::SchemeId;
using formats::Shape;
using enum ErrorCode;

namespace {

const auto kInt8 = spelled("compressed-tensors", SchemeId::kInt8Channel, Activations::kDynamic);
const auto kNvfp4 = spelled("compressed-tensors", SchemeId::kNvfp4, Activations::kWeightOnly);
const auto kModeloptNvfp4 = spelled("modelopt", SchemeId::kNvfp4, Activations::kStatic);
const auto kMxfp4 = spelled("compressed-tensors", SchemeId::kMxfp4, Activations::kWeightOnly);

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
      {"nvfp4.fused-global", kMismatch, kNvfp4,
       set_global(kDense + "up_proj.weight_global_scale", 5000)},
      {"nvfp4.fused-global", kMismatch, kModeloptNvfp4,
       set_global(kMoe + "experts.2.gate_proj.weight_scale_2", 0x1p-11F)},
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

std::vector<RuleFixture> spelling_fixtures() {
  const std::string o_proj = kAttention + "o_proj.weight";
  return {
      {"quantized.config-present", kNotFound, kInt8,
       [](auto& c) { c.config.erase("quantization_config"); }},
      {"quantized.config-without-weights", kMismatch, make_plain,
       [](auto& c) {
         c.config["quantization_config"] = kInt8().config["quantization_config"];
         c.config["quantization_config"]["ignore"] = {"re:.*"};
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
  for (const auto& make : {int8_fixtures, nvfp4_fixtures, mx_fixtures, spelling_fixtures}) {
    for (RuleFixture& fixture : make()) all.push_back(std::move(fixture));
  }
  return all;
}

}  // namespace ingot::testing
