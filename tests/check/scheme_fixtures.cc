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
      {.rule = "int8.scale-present",
       .code = kMissingTensor,
       .make = kInt8,
       .damage = [=](EditableCheckpoint& c) { c.tensors.erase(scale); }},
      {.rule = "int8.scale-dtype",
       .code = kDtypeMismatch,
       .make = kInt8,
       .damage =
           [=](EditableCheckpoint& c) { c.put_zeros(scale, DType::kI32, c.at(scale).shape); }},
      {.rule = "int8.scale-shape",
       .code = kShapeMismatch,
       .make = kInt8,
       .damage =
           [=](EditableCheckpoint& c) { std::swap(c.at(scale).shape[0], c.at(scale).shape[1]); }},
      {.rule = "int8.scale-values",
       .code = kBadScale,
       .make = kInt8,
       .damage = [=](EditableCheckpoint& c) { c.put_floats(scale, c.at(scale).shape, 0); }},
      {.rule = "int8.scale-values",
       .code = kBadScale,
       .make = spelled("modelslim", SchemeId::kInt8Channel, Activations::kStatic),
       .damage =
           [](EditableCheckpoint& c) {
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
    return [=](EditableCheckpoint& c) { c.put_floats(name, c.at(name).shape, value); };
  };
  const auto set_scale = [=](unsigned code) {
    return [=](EditableCheckpoint& c) { c.at(scale).bytes[1] = static_cast<std::byte>(code); };
  };
  return {
      {.rule = "nvfp4.parts",
       .code = kMissingTensor,
       .make = kNvfp4,
       .damage = [=](EditableCheckpoint& c) { c.tensors.erase(global); }},
      {.rule = "nvfp4.parts",
       .code = kMissingTensor,
       .make = kModeloptNvfp4,
       .damage = [=](EditableCheckpoint& c) { c.tensors.erase(scale); }},
      {.rule = "nvfp4.dtypes",
       .code = kDtypeMismatch,
       .make = kNvfp4,
       .damage = [=](EditableCheckpoint& c) { c.put_floats(scale, c.at(scale).shape, 1); }},
      {.rule = "nvfp4.columns",
       .code = kShapeMismatch,
       .make =
           [] {
             return make_spelled({"compressed-tensors", SchemeId::kNvfp4, Activations::kWeightOnly},
                                 [](auto& o) {
                                   o.fp8 = false;
                                   o.moe_intermediate = 136;
                                 });
           }},
      {.rule = "nvfp4.scale-shape",
       .code = kShapeMismatch,
       .make = kModeloptNvfp4,
       .damage =
           [=](EditableCheckpoint& c) { std::swap(c.at(scale).shape[0], c.at(scale).shape[1]); }},
      {.rule = "nvfp4.global-one-element",
       .code = kShapeMismatch,
       .make = kNvfp4,
       .damage = [=](EditableCheckpoint& c) { c.put_floats(global, {2}, 4096); }},
      {.rule = "nvfp4.global-convention",
       .code = kMismatch,
       .make = kNvfp4,
       .damage =
           [=](EditableCheckpoint& c) {
             c.tensors.erase(global);
             c.put_floats(stem + "weight_scale_2", {}, 0x1p-12F);
           }},
      {.rule = "nvfp4.scale-values", .code = kBadScale, .make = kNvfp4, .damage = set_scale(0)},
      {.rule = "nvfp4.scale-values",
       .code = kBadScale,
       .make = kModeloptNvfp4,
       .damage = set_scale(0x7F)},
      {.rule = "nvfp4.scale-values", .code = kBadScale, .make = kNvfp4, .damage = set_scale(0xB8)},
      {.rule = "nvfp4.global-values",
       .code = kBadScale,
       .make = kNvfp4,
       .damage = set_global(global, std::numeric_limits<float>::infinity())},
      {.rule = "nvfp4.global-values",
       .code = kBadScale,
       .make = kModeloptNvfp4,
       .damage = set_global(stem + "weight_scale_2", 0)},
      {.rule = "nvfp4.fused-global",
       .code = kMismatch,
       .make = kNvfp4,
       .damage = set_global(kDense + "up_proj.weight_global_scale", 5000)},
      {.rule = "nvfp4.fused-global",
       .code = kMismatch,
       .make = kModeloptNvfp4,
       .damage = set_global(kMoe + "experts.2.gate_proj.weight_scale_2", 0x1p-11F)},
      {.rule = "nvfp4.reciprocal",
       .code = kBadScale,
       .make = kModeloptNvfp4,
       .damage = set_global(stem + "weight_scale_2", 4096)},
      {.rule = "nvfp4.reciprocal",
       .code = kBadScale,
       .make = kNvfp4,
       .damage = set_global(global, 0x1p-12F)},
  };
}

std::vector<RuleFixture> mx_fixtures() {
  const std::string scale = kDense + "down_proj.weight_scale";
  return {
      {.rule = "mx.columns",
       .code = kShapeMismatch,
       .make =
           [] {
             return make_spelled({"compressed-tensors", SchemeId::kMxfp8, Activations::kWeightOnly},
                                 [](auto& o) {
                                   o.fp8 = false;
                                   o.moe_intermediate = 144;
                                 });
           }},
      {.rule = "mx.scale-dtype",
       .code = kDtypeMismatch,
       .make = kMxfp4,
       .damage = [=](EditableCheckpoint& c) { c.at(scale).dtype = DType::kF8E8M0; }},
      {.rule = "mx.scale-values",
       .code = kBadScale,
       .make = kMxfp4,
       .damage = [=](EditableCheckpoint& c) { c.at(scale).bytes[3] = std::byte{0xFF}; }},
  };
}

std::vector<RuleFixture> spelling_fixtures() {
  const std::string o_proj = kAttention + "o_proj.weight";
  return {
      {.rule = "quantized.config-present",
       .code = kNotFound,
       .make = kInt8,
       .damage = [](EditableCheckpoint& c) { c.config.erase("quantization_config"); }},
      {.rule = "quantized.config-without-weights",
       .code = kMismatch,
       .make = make_plain,
       .damage =
           [](EditableCheckpoint& c) {
             c.config["quantization_config"] = kInt8().config["quantization_config"];
             c.config["quantization_config"]["ignore"] = {"re:.*"};
           }},
      {.rule = "quantized.scheme-held",
       .code = kUnsupported,
       .damage =
           [=](EditableCheckpoint& c) {
             c.tensors.erase(o_proj + "_scale_inv");
             c.put_floats(o_proj + "_scale", {c.at(o_proj).shape[0], 1}, 1);
           }},
      {.rule = "quantized.one-scheme",
       .code = kUnsupported,
       .make = spelled("deepseek", SchemeId::kInt8Block, Activations::kDynamic),
       .damage =
           [=](EditableCheckpoint& c) {
             put_spelled(c, o_proj, {"deepseek", SchemeId::kFp8Block, Activations::kDynamic});
           }},
      {.rule = "quantized.part-names",
       .code = kMismatch,
       .damage =
           [=](EditableCheckpoint& c) {
             c.tensors[o_proj + "_scale"] = c.at(o_proj + "_scale_inv");
             c.tensors.erase(o_proj + "_scale_inv");
           }},
      {.rule = "quantized.part-names",
       .code = kMismatch,
       .make = kInt8,
       .damage =
           [=](EditableCheckpoint& c) {
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
