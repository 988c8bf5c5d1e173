#include <gtest/gtest.h>

#include "tests/check/rule_fixture.h"

namespace ingot::testing {

using formats::DType;
using enum ErrorCode;

std::vector<RuleFixture> model_fixtures() {
  const std::string bias = kMoe + "gate.e_score_correction_bias";
  return {
      {.rule = "container.metadata-format",
       .code = kNotFound,
       .damage = [](EditableCheckpoint& c) { c.with_metadata = false; }},
      {.rule = "container.entry-point",
       .code = kNotFound,
       .damage = [](EditableCheckpoint& c) { c.file_name = "weights.safetensors"; }},
      {.rule = "container.no-adapter",
       .code = kMismatch,
       .damage =
           [](EditableCheckpoint& c) {
             c.descriptions["adapter_config.json"] = {{"peft_type", "LORA"}};
           }},
      {.rule = "config.contradiction",
       .code = kMismatch,
       .damage = [](EditableCheckpoint& c) { c.config["qk_head_dim"] = 7; }},
      {.rule = "config.contradiction",
       .code = kMismatch,
       .damage =
           [](EditableCheckpoint& c) {
             c.config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 12345}};
           }},
      {.rule = "config.contradiction",
       .code = kMismatch,
       .damage =
           [](EditableCheckpoint& c) {
             c.config["mlp_layer_types"] = {"sparse", "sparse"};
           },
       .also = {"model.complete", "moe.expert-ids", "router.correction-bias"}},
      {.rule = "fused.scheme",
       .code = kMismatch,
       .damage =
           [](EditableCheckpoint& c) {
             make_weight_plain(c, kDense + "gate_proj.weight");
             quantization(c)["modules_to_not_convert"] = {"lm_head", kDense + "gate_proj"};
           }},
      {.rule = "cut.group-edge", .code = kShapeMismatch, .tensor_parallel = 2},
      {.rule = "moe.expert-ids",
       .code = kMissingTensor,
       .damage = [](EditableCheckpoint& c) { EXPECT_EQ(c.erase_prefix(kMoe + "experts.3."), 6U); }},
      {.rule = "moe.stacked-shape",
       .code = kShapeMismatch,
       .make = make_plain,
       .damage =
           [](EditableCheckpoint& c) {
             EXPECT_EQ(c.erase_prefix(kMoe + "experts."), 12U);
             c.put_zeros(kMoe + "experts.gate_up_proj", DType::kBf16, {4, 256, 256});
             c.put_zeros(kMoe + "experts.down_proj", DType::kBf16, {4, 128, 256});
           }},
      {.rule = "router.correction-bias",
       .code = kMissingTensor,
       .damage = [=](EditableCheckpoint& c) { c.tensors.erase(bias); }},
      {.rule = "router.correction-bias-dtype",
       .code = kDtypeMismatch,
       .damage = [=](EditableCheckpoint& c) { c.put_zeros(bias, DType::kBf16, {4}); }},
      {.rule = "indexer.complete",
       .code = kMissingTensor,
       .damage =
           [](EditableCheckpoint& c) { c.tensors.erase(kAttention + "indexer.k_norm.bias"); }},
      {.rule = "indexer.k-scheme",
       .code = kMismatch,
       .make = make_plain,
       .damage =
           [](EditableCheckpoint& c) {
             const std::string wk = kAttention + "indexer.wk.weight";
             c.put_floats(wk, c.at(wk).shape, 1);
           }},
      {.rule = "mtp.present",
       .code = kMissingTensor,
       .damage = [](EditableCheckpoint& c) { EXPECT_GT(c.erase_prefix(kMtp), 20U); }},
      {.rule = "mtp.complete",
       .code = kMissingTensor,
       .damage = [](EditableCheckpoint& c) { c.tensors.erase(kMtp + "enorm.weight"); }},
      {.rule = "model.complete",
       .code = kMissingTensor,
       .damage = [](EditableCheckpoint& c) { c.tensors.erase("model.norm.weight"); }},
      {.rule = "model.shape",
       .code = kShapeMismatch,
       .damage =
           [](EditableCheckpoint& c) { c.put_zeros("model.norm.weight", DType::kF32, {255}); }},
  };
}

std::vector<RuleFixture> rule_fixtures() {
  std::vector<RuleFixture> all;
  for (const auto& make :
       {native_fixtures, scheme_fixtures, compressed_tensors_fixtures, modelopt_fixtures,
        modelslim_fixtures, engine_fixtures, model_fixtures}) {
    for (RuleFixture& fixture : make()) all.push_back(std::move(fixture));
  }
  return all;
}

}  // namespace ingot::testing
