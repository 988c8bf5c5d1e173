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
      {.rule = "modelopt.scale-shape",
       .code = kShapeMismatch,
       .make = spelled("modelopt", SchemeId::kFp8Channel, Activations::kDynamic),
       .damage =
           [](EditableCheckpoint& c) {
             c.at(kAttention + "o_proj.weight_scale").shape.push_back(1);
           },
       .also = {"modelopt.algo-of-sglang"}},
      {.rule = "modelopt.description-present",
       .code = kNotFound,
       .make = kNvfp4,
       .damage = [](EditableCheckpoint& c) { c.descriptions.clear(); }},
      {.rule = "modelopt.required-keys",
       .code = kNotFound,
       .make = kNvfp4,
       .damage = [](EditableCheckpoint& c) { statement(c).erase("kv_cache_quant_algo"); }},
      {.rule = "modelopt.required-keys",
       .code = kNotFound,
       .make = kNvfp4,
       .damage = [](EditableCheckpoint& c) { statement(c).erase("group_size"); }},
      {.rule = "modelopt.required-keys",
       .code = kNotFound,
       .make = make_all_fp8,
       .damage = [](EditableCheckpoint& c) { statement(c).erase("exclude_modules"); },
       .also = {"indexer.k-scheme", "modelopt.exclude-plain"}},
      {.rule = "modelopt.exclude-not-empty",
       .code = kNotFound,
       .make = make_all_fp8,
       .damage = [](EditableCheckpoint& c) { statement(c)["exclude_modules"] = Json::array(); },
       .also = {"indexer.k-scheme", "modelopt.exclude-plain", "modelopt.statements-agree"}},
      {.rule = "modelopt.quant-algo",
       .code = kUnsupported,
       .make = kNvfp4,
       .damage = [](EditableCheckpoint& c) { statement(c)["quant_algo"] = "NVFP5"; },
       .also = {"modelopt.statements-agree"}},
      {.rule = "modelopt.quant-algo",
       .code = kMismatch,
       .make = kNvfp4,
       .damage = [](EditableCheckpoint& c) { statement(c)["quant_algo"] = "FP8"; },
       .also = {"modelopt.statements-agree", "modelopt.arguments"}},
      {.rule = "modelopt.algo-of-sglang",
       .code = kUnsupported,
       .make = spelled("modelopt", SchemeId::kFp8Channel, Activations::kDynamic)},
      {.rule = "modelopt.exclude-quantized",
       .code = kMismatch,
       .make = kNvfp4,
       .damage = exclude_also("*.down_proj"),
       .also = {"modelopt.statements-agree"}},
      {.rule = "modelopt.exclude-quantized",
       .code = kMismatch,
       .make = kNvfp4,
       .damage =
           [](EditableCheckpoint& c) {
             statement(c)["quant_algo"] = "MIXED_PRECISION";
             statement(c)["quantized_layers"] = {{"model.layers.0.mlp", {{"quant_algo", "NVFP4"}}}};
           },
       .also = {"modelopt.statements-agree"}},
      {.rule = "modelopt.exclude-inside",
       .code = kMismatch,
       .make = kNvfp4,
       .damage = exclude_also("mlp.experts.3")},
      {.rule = "modelopt.exclude-plain",
       .code = kMismatch,
       .make = kNvfp4,
       .damage = [](EditableCheckpoint& c) { replace_excluded(c, "*.self_attn*", "attention"); },
       .also = {"modelopt.statements-agree"}},
      {.rule = "modelopt.exclude-plain-whole",
       .code = kMismatch,
       .make = kNvfp4,
       .damage = [](EditableCheckpoint& c) { replace_excluded(c, "*.self_attn*", "self_attn"); },
       .also = {"modelopt.statements-agree"}},
      // Heads, which engines of this dialect build with the quantization config.
      {.rule = "modelopt.exclude-plain",
       .code = kMismatch,
       .make = kNvfp4,
       .damage = [](EditableCheckpoint& c) { replace_excluded(c, "lm_head", "head_of_nothing"); },
       .also = {"modelopt.statements-agree"}},
      {.rule = "modelopt.mtp-head",
       .code = kMismatch,
       .make = kNvfp4,
       .damage =
           [](EditableCheckpoint& c) {
             replace_excluded(c, "model.layers.2.head", "model.layers.7.head");
           },
       .also = {"modelopt.statements-agree"}},
      {.rule = "modelopt.plain-module",
       .code = kDtypeMismatch,
       .make = kNvfp4,
       .damage =
           [](EditableCheckpoint& c) {
             put_spelled(c, "lm_head.weight", {"modelopt", SchemeId::kNvfp4, Activations::kStatic});
             replace_excluded(c, "lm_head", "head_of_nothing");
           },
       .also = {"modelopt.statements-agree"}},
      {.rule = "modelopt.input-scale",
       .code = kMissingTensor,
       .make = kNvfp4,
       .damage = [](EditableCheckpoint& c) { c.tensors.erase(kDense + "down_proj.input_scale"); }},
      {.rule = "modelopt.cache-scales",
       .code = kMissingTensor,
       .make = kNvfp4,
       .damage =
           [](EditableCheckpoint& c) {
             statement(c)["kv_cache_quant_algo"] = "FP8";
             quantization(c)["kv_cache_scheme"] = {{"num_bits", 8}, {"type", "float"}};
           }},
      {.rule = "modelopt.arguments",
       .code = kMismatch,
       .make = kNvfp4,
       .damage = [](EditableCheckpoint& c) { statement(c)["group_size"] = 32; }},
      {.rule = "modelopt.arguments",
       .code = kMismatch,
       .make = kNvfp4,
       .damage = [](EditableCheckpoint& c) { statement(c)["pre_quant_scale"] = true; }},
      {.rule = "modelopt.arguments",
       .code = kMismatch,
       .make = kNvfp4,
       .damage =
           [](EditableCheckpoint& c) {
             quantization(c)["config_groups"]["group_0"] = {
                 {"weights", {{"num_bits", 8}, {"type", "float"}, {"group_size", 16}}},
                 {"input_activations", {{"num_bits", 4}, {"dynamic", false}}}};
           }},
      {.rule = "modelopt.statements-agree",
       .code = kMismatch,
       .make = kNvfp4,
       .damage = [](EditableCheckpoint& c) { quantization(c)["ignore"].push_back("*.down_proj"); }},
      {.rule = "modelopt.statements-agree",
       .code = kMismatch,
       .make = kNvfp4,
       .damage = [](EditableCheckpoint& c) { quantization(c)["quant_algo"] = "W4A16_NVFP4"; }},
      {.rule = "quantized.input-scale-range",
       .code = kBadScale,
       .make = kNvfp4,
       .damage =
           [](EditableCheckpoint& c) {
             c.put_floats(kMoe + "experts.3.down_proj.input_scale", {}, 1e6F);
           }},
      {.rule = "quantized.input-scale-range",
       .code = kBadScale,
       .make = kNvfp4,
       .damage =
           [](EditableCheckpoint& c) { c.put_floats(kDense + "down_proj.input_scale", {}, 0); }},
  };
}

}  // namespace ingot::testing
