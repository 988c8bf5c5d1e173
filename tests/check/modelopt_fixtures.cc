#include "tests/check/rule_fixture.h"

namespace ingot::testing {

using formats::Activations;
using formats::Json;
using formats::SchemeId;
using enum ErrorCode;

namespace {

const auto kNvfp4 = spelled("modelopt", SchemeId::kNvfp4, Activations::kStatic);

Json& statement(EditableCheckpoint& checkpoint) {
  return checkpoint.descriptions.at("hf_quant_config.json")["quantization"];
}

std::function<void(EditableCheckpoint&)> exclude_also(const std::string& entry) {
  return [=](EditableCheckpoint& c) { statement(c)["exclude_modules"].push_back(entry); };
}

void replace_excluded(EditableCheckpoint& checkpoint, const std::string& old,
                      const std::string& by) {
  for (Json& entry : statement(checkpoint)["exclude_modules"]) {
    if (entry == old) entry = by;
  }
}

/// Everything is quantized that a release quantizes, so that nothing needs to be excluded.
EditableCheckpoint make_all_fp8() {
  const Spelled fp8 = {"modelopt", SchemeId::kFp8Tensor, Activations::kStatic};
  EditableCheckpoint checkpoint = make_spelled(fp8);
  for (const char* layer : {"0", "1", "2"}) {
    put_spelled(checkpoint, std::string("model.layers.") + layer + ".self_attn.indexer.wk.weight",
                fp8);
  }
  return checkpoint;
}

}  // namespace

std::vector<RuleFixture> modelopt_fixtures() {
  return {
      {"modelopt.scale-shape",
       kShapeMismatch,
       spelled("modelopt", SchemeId::kFp8Channel, Activations::kDynamic),
       [](auto& c) { c.at(kAttention + "o_proj.weight_scale").shape.push_back(1); },
       {"modelopt.algo-of-sglang"}},
      {"modelopt.description-present", kNotFound, kNvfp4, [](auto& c) { c.descriptions.clear(); }},
      {"modelopt.required-keys", kNotFound, kNvfp4,
       [](auto& c) { statement(c).erase("kv_cache_quant_algo"); }},
      {"modelopt.required-keys", kNotFound, kNvfp4,
       [](auto& c) { statement(c).erase("group_size"); }},
      {"modelopt.required-keys",
       kNotFound,
       make_all_fp8,
       [](auto& c) { statement(c).erase("exclude_modules"); },
       {"indexer.k-scheme", "modelopt.exclude-plain"}},
      {"modelopt.exclude-not-empty",
       kNotFound,
       make_all_fp8,
       [](auto& c) { statement(c)["exclude_modules"] = Json::array(); },
       {"indexer.k-scheme", "modelopt.exclude-plain", "modelopt.statements-agree"}},
      {"modelopt.quant-algo",
       kUnsupported,
       kNvfp4,
       [](auto& c) { statement(c)["quant_algo"] = "NVFP5"; },
       {"modelopt.statements-agree"}},
      {"modelopt.quant-algo",
       kMismatch,
       kNvfp4,
       [](auto& c) { statement(c)["quant_algo"] = "FP8"; },
       {"modelopt.statements-agree", "modelopt.arguments"}},
      {"modelopt.algo-of-sglang", kUnsupported,
       spelled("modelopt", SchemeId::kFp8Channel, Activations::kDynamic)},
      {"modelopt.exclude-quantized",
       kMismatch,
       kNvfp4,
       exclude_also("*.down_proj"),
       {"modelopt.statements-agree"}},
      {"modelopt.exclude-quantized",
       kMismatch,
       kNvfp4,
       [](auto& c) {
         statement(c)["quant_algo"] = "MIXED_PRECISION";
         statement(c)["quantized_layers"] = {{"model.layers.0.mlp", {{"quant_algo", "NVFP4"}}}};
       },
       {"modelopt.statements-agree"}},
      {"modelopt.exclude-inside", kMismatch, kNvfp4, exclude_also("mlp.experts.3")},
      {"modelopt.exclude-plain",
       kMismatch,
       kNvfp4,
       [](auto& c) { replace_excluded(c, "*.self_attn*", "attention"); },
       {"modelopt.statements-agree"}},
      {"modelopt.exclude-plain-whole",
       kMismatch,
       kNvfp4,
       [](auto& c) { replace_excluded(c, "*.self_attn*", "self_attn"); },
       {"modelopt.statements-agree"}},
      // Heads, which engines of this dialect build with the quantization config.
      {"modelopt.exclude-plain",
       kMismatch,
       kNvfp4,
       [](auto& c) { replace_excluded(c, "lm_head", "head_of_nothing"); },
       {"modelopt.statements-agree"}},
      {"modelopt.mtp-head",
       kMismatch,
       kNvfp4,
       [](auto& c) { replace_excluded(c, "model.layers.2.head", "model.layers.7.head"); },
       {"modelopt.statements-agree"}},
      {"modelopt.plain-module",
       kDtypeMismatch,
       kNvfp4,
       [](auto& c) {
         put_spelled(c, "lm_head.weight", {"modelopt", SchemeId::kNvfp4, Activations::kStatic});
         replace_excluded(c, "lm_head", "head_of_nothing");
       },
       {"modelopt.statements-agree"}},
      {"modelopt.input-scale", kMissingTensor, kNvfp4,
       [](auto& c) { c.tensors.erase(kDense + "down_proj.input_scale"); }},
      {"modelopt.cache-scales", kMissingTensor, kNvfp4,
       [](auto& c) {
         statement(c)["kv_cache_quant_algo"] = "FP8";
         quantization(c)["kv_cache_scheme"] = {{"num_bits", 8}, {"type", "float"}};
       }},
      {"modelopt.arguments", kMismatch, kNvfp4, [](auto& c) { statement(c)["group_size"] = 32; }},
      {"modelopt.arguments", kMismatch, kNvfp4,
       [](auto& c) { statement(c)["pre_quant_scale"] = true; }},
      {"modelopt.arguments", kMismatch, kNvfp4,
       [](auto& c) {
         quantization(c)["config_groups"]["group_0"] = {
             {"weights", {{"num_bits", 8}, {"type", "float"}, {"group_size", 16}}},
             {"input_activations", {{"num_bits", 4}, {"dynamic", false}}}};
       }},
      {"modelopt.statements-agree", kMismatch, kNvfp4,
       [](auto& c) { quantization(c)["ignore"].push_back("*.down_proj"); }},
      {"modelopt.statements-agree", kMismatch, kNvfp4,
       [](auto& c) { quantization(c)["quant_algo"] = "W4A16_NVFP4"; }},
      {"quantized.input-scale-range", kBadScale, kNvfp4,
       [](auto& c) { c.put_floats(kMoe + "experts.3.down_proj.input_scale", {}, 1e6F); }},
      {"quantized.input-scale-range", kBadScale, kNvfp4,
       [](auto& c) { c.put_floats(kDense + "down_proj.input_scale", {}, 0); }},
  };
}

}  // namespace ingot::testing
