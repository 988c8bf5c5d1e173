#include "tests/check/rule_fixture.h"

namespace ingot::testing {

using formats::Activations;
using formats::DType;
using formats::Json;
using formats::SchemeId;
using enum ErrorCode;

namespace {

const Spelled kDynamicInt8 = {"modelslim", SchemeId::kInt8Channel, Activations::kDynamic};
const Spelled kStaticInt8 = {"modelslim", SchemeId::kInt8Channel, Activations::kStatic};

EditableCheckpoint make_dynamic() {
  return make_spelled(kDynamicInt8);
}
EditableCheckpoint make_static() {
  return make_spelled(kStaticInt8);
}

Json& description(EditableCheckpoint& checkpoint) {
  return checkpoint.descriptions.at("quant_model_description.json");
}

}  // namespace

std::vector<RuleFixture> modelslim_fixtures() {
  const std::string o_proj = kAttention + "o_proj.";
  return {
      {"modelslim.description-present", kNotFound, make_dynamic,
       [](auto& c) {
         c.descriptions["quant_model_description_w8a8_dynamic.json"] = description(c);
         c.descriptions.erase("quant_model_description.json");
       }},
      {"modelslim.no-quantization-config",
       kMismatch,
       make_dynamic,
       [](auto& c) {
         c.config["quantization_config"] = {{"activation_scheme", "dynamic"},
                                            {"quant_method", "fp8"},
                                            {"weight_block_size", {128, 128}}};
       },
       {"fp8.config-without-weights", "quantized.scheme-held"}},
      {"modelslim.model-type", kNotFound, make_dynamic,
       [](auto& c) { description(c).erase("model_quant_type"); }},
      {"modelslim.description-complete", kNotFound, make_dynamic,
       [](auto& c) { description(c).erase("model.embed_tokens.weight"); }},
      {"modelslim.plain-module", kDtypeMismatch, make_dynamic,
       [](auto& c) {
         put_spelled(c, "lm_head.weight", kDynamicInt8);
         for (const char* part : {"weight", "weight_scale", "weight_offset"})
           description(c)[std::string("lm_head.") + part] = "W8A8_DYNAMIC";
       }},
      {"modelslim.types-known", kUnsupported, make_dynamic,
       [](auto& c) { description(c)["lm_head.weight"] = "W7A7"; }},
      {"modelslim.types-agree", kMismatch, make_dynamic,
       [](auto& c) { description(c)["lm_head.weight"] = "W8A8_DYNAMIC"; }},
      {"modelslim.types-agree", kMismatch, make_dynamic,
       [=](auto& c) { description(c)[o_proj + "weight"] = "FLOAT"; }},
      {"modelslim.fused-types", kMismatch, make_dynamic,
       [](auto& c) {
         const std::string stem = kDense + "gate_proj.";
         c.tensors.erase(stem + "weight_scale");
         c.tensors.erase(stem + "weight_offset");
         put_spelled(c, stem + "weight", kStaticInt8);
         for (const auto& [name, tensor] : c.tensors) {
           if (name.starts_with(stem)) description(c)[name] = "W8A8";
         }
       }},
      {"modelslim.static-parts", kMissingTensor, make_static,
       [=](auto& c) { c.tensors.erase(o_proj + "quant_bias"); }},
      {"modelslim.scale-shape", kShapeMismatch, make_dynamic,
       [=](auto& c) { c.at(o_proj + "weight_offset").shape.pop_back(); }},
      {"modelslim.deq-scale-dtype", kDtypeMismatch, make_static,
       [=](auto& c) {
         const std::string name = o_proj + "deq_scale";
         c.put_floats(name, c.at(name).shape, 0x1p-16F, DType::kI64);
       }},
      {"modelslim.kv-b-float", kUnsupported,
       [] {
         EditableCheckpoint checkpoint = make_plain();
         auto weights = spelled_weights(checkpoint, kDynamicInt8);
         weights.push_back(kAttention + "kv_b_proj.weight");
         for (const std::string& name : weights) put_spelled(checkpoint, name, kDynamicInt8);
         describe_modelslim(checkpoint, weights, "W8A8_DYNAMIC");
         return checkpoint;
       }},
  };
}

}  // namespace ingot::testing
