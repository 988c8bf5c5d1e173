#include "formats/family/families.h"
#include "tests/check/rules/rule_fixture.h"

namespace ingot::testing {

using namespace formats;
using enum ErrorCode;

namespace {

Json& statement(EditableCheckpoint& checkpoint) {
  return checkpoint.descriptions.at("hf_quant_config.json")["quantization"];
}

Damage in_statement(std::vector<JsonEdit> edits) {
  for (JsonEdit& edit : edits) edit.at = "/quantization" + edit.at;
  return in_file("hf_quant_config.json", std::move(edits));
}

void replace_excluded(EditableCheckpoint& checkpoint, const std::string& old,
                      const std::string& by) {
  for (Json& entry : statement(checkpoint)["exclude_modules"]) {
    if (entry == old) entry = by;
  }
}

/// `quantized_layers` of the quantized MLPs, with that of the first layer as given.
Json layers_with(const Json& first) {
  return {{"model.layers.0.mlp", first}, {"model.layers.1.mlp", {{"quant_algo", "NVFP4"}}}};
}

/// Both statements list modules; the file has another algorithm of the same numbers for one.
void make_mixtures_differ(EditableCheckpoint& checkpoint) {
  for (Json* owner : {&checkpoint.config["quantization_config"], &statement(checkpoint)}) {
    (*owner)["quant_algo"] = "MIXED_PRECISION";
    (*owner)["quantized_layers"] = layers_with({{"quant_algo", "NVFP4"}});
  }
  statement(checkpoint)["quantized_layers"] = layers_with({{"quant_algo", "W4A16_NVFP4"}});
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
      {"modelopt.description-present", kNotFound, kModeloptNvfp4,
       [](auto& c) { c.descriptions.erase("hf_quant_config.json"); }},
      {"modelopt.required-keys", kNotFound, kModeloptNvfp4,
       in_statement({{"/kv_cache_quant_algo"}})},
      {"modelopt.required-keys", kNotFound, kModeloptNvfp4, in_statement({{"/group_size"}})},
      {"modelopt.required-keys",
       kNotFound,
       make_all_fp8,
       in_statement({{"/exclude_modules"}}),
       {"indexer.k-scheme", "modelopt.exclude-plain"}},
      {"modelopt.exclude-not-empty",
       kNotFound,
       make_all_fp8,
       in_statement({{"/exclude_modules", Json::array()}}),
       {"indexer.k-scheme", "modelopt.exclude-plain", "modelopt.statements-agree"}},
      {"modelopt.quant-algo",
       kUnsupported,
       kModeloptNvfp4,
       in_statement({{"/quant_algo", "NVFP5"}}),
       {"modelopt.statements-agree"}},
      {"modelopt.quant-algo",
       kUnsupported,
       kModeloptNvfp4,
       in_statement({{"/quant_algo", Json()}}),
       {"modelopt.statements-agree"}},
      {"modelopt.quant-algo",
       kMismatch,
       kModeloptNvfp4,
       in_statement({{"/quant_algo", "FP8"}}),
       {"modelopt.statements-agree", "modelopt.arguments"}},
      // Modules of mixtures.
      {"modelopt.quant-algo",
       kMismatch,
       kModeloptNvfp4,
       in_statement({{"/quant_algo", "MIXED_PRECISION"},
                     {"/quantized_layers", layers_with({{"quant_algo", "FP8"}})}}),
       {"modelopt.statements-agree"}},
      {"modelopt.quant-algo",
       kMismatch,
       kModeloptNvfp4,
       in_statement({{"/quant_algo", "MIXED_PRECISION"},
                     {"/quantized_layers", layers_with({{"quant_algo", "W3A3"}})}}),
       {"modelopt.statements-agree"}},
      {"modelopt.arguments",
       kMismatch,
       kModeloptNvfp4,
       in_statement(
           {{"/quant_algo", "MIXED_PRECISION"},
            {"/quantized_layers", layers_with({{"quant_algo", "NVFP4"}, {"group_size", 32}})}}),
       {"modelopt.statements-agree"}},
      {"modelopt.statements-agree", kMismatch, kModeloptNvfp4, make_mixtures_differ},
      {"modelopt.algo-of-sglang", kUnsupported,
       spelled("modelopt", SchemeId::kFp8Channel, Activations::kDynamic)},
      {"modelopt.exclude-quantized",
       kMismatch,
       kModeloptNvfp4,
       in_statement({{"/exclude_modules/-", "*.down_proj"}}),
       {"modelopt.statements-agree"}},
      {"modelopt.exclude-quantized",
       kMismatch,
       kModeloptNvfp4,
       in_statement({{"/quant_algo", "MIXED_PRECISION"},
                     {"/quantized_layers", {{"model.layers.0.mlp", {{"quant_algo", "NVFP4"}}}}}}),
       {"modelopt.statements-agree"}},
      {"modelopt.exclude-inside", kMismatch, kModeloptNvfp4,
       in_statement({{"/exclude_modules/-", "mlp.experts.3"}})},
      {"modelopt.exclude-plain",
       kMismatch,
       kModeloptNvfp4,
       [](auto& c) { replace_excluded(c, "*.self_attn*", "attention"); },
       {"modelopt.statements-agree"}},
      // Without the file engines read `ignore` of config.json, and no other list there.
      {"modelopt.exclude-plain",
       kMismatch,
       kModeloptNvfp4,
       [](auto& c) {
         c.descriptions.erase("hf_quant_config.json");
         Json& block = c.config["quantization_config"];
         block["exclude_modules"] = block["ignore"];
         block["ignore"] = {"lm_head"};
       },
       {"modelopt.description-present"}},
      {"modelopt.exclude-plain-whole",
       kMismatch,
       kModeloptNvfp4,
       [](auto& c) { replace_excluded(c, "*.self_attn*", "self_att"); },
       {"modelopt.statements-agree"}},
      // Heads, which engines of this dialect build with the quantization config.
      {"modelopt.exclude-plain",
       kMismatch,
       kModeloptNvfp4,
       [](auto& c) { replace_excluded(c, "lm_head", "head_of_nothing"); },
       {"modelopt.statements-agree"}},
      {"modelopt.tied-head",
       kMismatch,
       kModeloptNvfp4,
       [](auto& c) {
         c.config["tie_word_embeddings"] = true;
         c.tensors.erase("lm_head.weight");
         replace_excluded(c, "lm_head", "head_of_nothing");
       },
       {"modelopt.statements-agree"}},
      {"modelopt.mtp-head", kMismatch, kModeloptNvfp4,
       [](auto& c) {
         replace_excluded(c, "model.layers.2.head", "lm_head");
         c.config["quantization_config"]["ignore"] = statement(c)["exclude_modules"];
       }},
      {"modelopt.plain-module",
       kDtypeMismatch,
       kModeloptNvfp4,
       [](auto& c) {
         put_spelled(c, "model.embed_tokens.weight",
                     {"modelopt", SchemeId::kNvfp4, Activations::kStatic});
       },
       {"modelopt.exclude-quantized"}},
      {"modelopt.cache-in-both",
       kMismatch,
       kModeloptNvfp4,
       [](auto& c) { statement(c)["kv_cache_quant_algo"] = "FP8"; },
       {"modelopt.cache-scales"}},
      {"modelopt.input-scale", kMissingTensor, kModeloptNvfp4,
       [](auto& c) { c.tensors.erase(kDense + "down_proj.input_scale"); }},
      {"modelopt.input-scale",
       kMissingTensor,
       kModeloptNvfp4,
       [](auto& c) {
         in_statement({{"/quant_algo", "MIXED_PRECISION"},
                       {"/quantized_layers", layers_with({{"quant_algo", "NVFP4"}})}})(c);
         c.tensors.erase(kDense + "down_proj.input_scale");
       },
       {"modelopt.statements-agree"}},
      {"modelopt.cache-scales", kMissingTensor, kModeloptNvfp4,
       [](auto& c) {
         statement(c)["kv_cache_quant_algo"] = "FP8";
         quantization(c)["kv_cache_scheme"] = {{"num_bits", 8}, {"type", "float"}};
       }},
      {"modelopt.arguments", kMismatch, kModeloptNvfp4, in_statement({{"/group_size", 32}})},
      {"modelopt.arguments", kMismatch, kModeloptNvfp4, in_statement({{"/pre_quant_scale", true}})},
      {"modelopt.arguments", kMismatch, kModeloptNvfp4,
       in_quantization({{"/config_groups/group_0",
                         {{"weights", {{"num_bits", 8}, {"type", "float"}, {"group_size", 16}}},
                          {"input_activations", {{"num_bits", 4}, {"dynamic", false}}}}}})},
      {"modelopt.statements-agree", kMismatch, kModeloptNvfp4,
       in_quantization({{"/ignore/-", "*.down_proj"}})},
      {"modelopt.statements-agree", kMismatch, kModeloptNvfp4,
       in_quantization({{"/quant_algo", "W4A16_NVFP4"}})},
      {"quantized.input-scale-range", kBadScale, kModeloptNvfp4,
       [](auto& c) { c.put_floats(kMoe + "experts.3.down_proj.input_scale", {}, 1e6F); }},
      {"quantized.input-scale-range", kBadScale, kModeloptNvfp4,
       [](auto& c) { c.put_floats(kDense + "down_proj.input_scale", {}, 0); }},
  };
}

namespace {

const Spelled kDynamicInt8 = {"modelslim", SchemeId::kInt8Channel, Activations::kDynamic};
const Spelled kStaticInt8 = {"modelslim", SchemeId::kInt8Channel, Activations::kStatic};

EditableCheckpoint make_dynamic() {
  return make_spelled(kDynamicInt8);
}
EditableCheckpoint make_static() {
  return make_spelled(kStaticInt8);
}

constexpr const char* kDescription = "quant_model_description.json";

Json& description(EditableCheckpoint& checkpoint) {
  return checkpoint.descriptions.at(kDescription);
}

}  // namespace

std::vector<RuleFixture> modelslim_fixtures() {
  const std::string o_proj = kAttention + "o_proj.";
  return {
      {"modelslim.description-present", kNotFound, make_dynamic,
       [](auto& c) {
         c.descriptions["quant_model_description_w8a8_dynamic.json"] = description(c);
         c.descriptions.erase(kDescription);
       }},
      {"modelslim.no-quantization-config",
       kMismatch,
       make_dynamic,
       in_config({{"/quantization_config",
                   {{"activation_scheme", "dynamic"},
                    {"quant_method", "fp8"},
                    {"weight_block_size", {128, 128}}}}}),
       {"fp8.config-without-weights", "quantized.scheme-held"}},
      {"modelslim.model-type", kNotFound, make_dynamic,
       in_file(kDescription, {{"/model_quant_type"}})},
      {"modelslim.description-complete", kNotFound, make_dynamic,
       in_file(kDescription, {{"/model.embed_tokens.weight"}})},
      {"modelslim.plain-module", kDtypeMismatch, make_dynamic,
       [](auto& c) {
         put_spelled(c, "lm_head.weight", kDynamicInt8);
         for (const char* part : {"weight", "weight_scale", "weight_offset"})
           description(c)[std::string("lm_head.") + part] = "W8A8_DYNAMIC";
       }},
      {"modelslim.types-known", kUnsupported, make_dynamic,
       in_file(kDescription, {{"/lm_head.weight", "W7A7"}})},
      {"modelslim.types-agree", kMismatch, make_dynamic,
       in_file(kDescription, {{"/lm_head.weight", "W8A8_DYNAMIC"}})},
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

namespace {

Json& group(EditableCheckpoint& checkpoint) {
  return quantization(checkpoint)["config_groups"]["group_0"];
}

void ignore_also(EditableCheckpoint& checkpoint, const std::string& entry) {
  quantization(checkpoint)["ignore"].push_back(entry);
}

EditableCheckpoint make_qwen_int8() {
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
      {"ct.format-known", kNotFound, kInt8,
       in_quantization({{"/format"}, {"/config_groups/group_0/format"}})},
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
      {"ct.experts-agree", kMismatch, kInt8,
       [](auto& c) {
         Json of_down = group(c);
         of_down["weights"]["observer"] = "mse";
         of_down["targets"] = {"re:.*experts.*down_proj$"};
         quantization(c)["config_groups"]["group_1"] = of_down;
       }},
      {"ct.ignore", kMismatch, kInt8, [=](auto& c) { make_weight_plain(c, o_proj); }},
      {"ct.ignore-never-quantized", kMismatch, kInt8, in_quantization({{"/ignore/0"}})},
      // vLLM builds this family's router with the quantization config.
      {"ct.ignore",
       kMismatch,
       make_qwen_int8,
       in_quantization({{"/ignore/1"}}),
       {"quantized.list-names-nothing"}},
      // A name that the indexer's modules have only in vLLM's memory; one layer too many.
      {"quantized.list-names-nothing", kMismatch, kInt8,
       [](auto& c) { ignore_also(c, "re:.*indexers_proj$"); }},
      {"quantized.list-names-nothing", kMismatch, kInt8,
       [](auto& c) { ignore_also(c, "model.layers.3.mlp.gate"); }},
      {"ct.mtp-names",
       kMismatch,
       kInt8,
       [](auto& c) {
         put_spelled(c, kMtp + "shared_head.head.weight",
                     {"compressed-tensors", SchemeId::kInt8Channel, Activations::kDynamic});
         Json& block = quantization(c);
         for (Json& entry : block["ignore"]) {
           if (entry == "re:.*shared_head.*") entry = "re:.*shared_head.norm";
         }
         for (Json& group : block["config_groups"])
           group["targets"].push_back(kMtp + "shared_head.head");
       },
       {"ct.plain-module"}},
      {"mtp.draft-names", kMismatch, kInt8,
       [](auto& c) {
         make_weight_plain(c, kMtp + "self_attn.o_proj.weight");
         ignore_also(c, R"(re:.*layers\.2\..*o_proj$)");
       }},
      // SGLang builds draft models of NVFP4 plain.
      {"mtp.draft-names", kMismatch, kModeloptNvfp4,
       [](auto& c) {
         const std::string experts = kMtp + "mlp.shared_experts.";
         for (const char* leaf : {"gate_proj.weight", "up_proj.weight", "down_proj.weight"})
           put_spelled(c, experts + leaf, {"modelopt", SchemeId::kNvfp4, Activations::kStatic});
         replace_excluded(c, "model.layers.2.mlp.shared_experts*", "lm_head");
         c.config["quantization_config"]["ignore"] = statement(c)["exclude_modules"];
       }},
      // Outputs of ingot before it wrote this target in mixtures.
      {"ct.block-target", kMismatch,
       spelled("compressed-tensors", SchemeId::kFp8Block, Activations::kDynamic),
       [](auto& c) {
         quantization(c)["config_groups"]["group_0"]["targets"] = {
             R"(re:.*\.(self_attn|mlp)\..*(proj|wq_b|wk|with_mqa)$)"};
       }},
      {"ct.joined-scales", kShapeMismatch,
       spelled("compressed-tensors", SchemeId::kFp8Tensor, Activations::kStatic),
       [](auto& c) { c.at(kAttention + "q_a_proj.input_scale").shape = {1}; }},
      // The output of llm-compressor when it is not told to ignore the router, the head, ...
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
      {"quantized.cache-scale-form", kMissingTensor, kInt8,
       [](auto& c) { c.put_floats(kAttention + "v_proj.v_scale", {}, 0.5F); }},
      {"quantized.cache-scale-values", kBadScale, kInt8,
       [](auto& c) { c.put_floats(kAttention + "k_proj.k_scale", {}, 0); }},
      {"quantized.cache-scale-use", kUnsupported, kInt8,
       [](auto& c) { c.put_floats(kAttention + "k_scale", {1}, 0.5F); }},
      {"quantized.known-keys", kUnsupported, kInt8, in_quantization({{"/surprise", 1}})},
      {"quantized.block-on-top", kMismatch, make_fp8,
       [](auto& c) {
         c.config["text_config"] = formats::Json(c.config);
         c.config.erase("quantization_config");
       }},
      {"ct.tied-target", kMismatch, kInt8,
       [](auto& c) {
         c.config["tie_word_embeddings"] = true;
         c.tensors.erase("lm_head.weight");
         formats::Json& block = quantization(c);
         block["ignore"].erase(0);
         block["config_groups"]["group_0"]["targets"].push_back("re:.*lm_head$");
       }},
      {"quantized.one-block", kDuplicate, kInt8,
       [](auto& c) {
         c.descriptions["hf_quant_config.json"] = {{"quantization", {{"quant_algo", "FP8"}}}};
       }},
      {"quantized.one-block", kDuplicate, kInt8,
       in_config({{"/compression_config", {{"quant_method", "compressed-tensors"}}}})},
      {"quantized.one-block", kDuplicate, kInt8,
       in_config({{"/vision_config", {{"quantization_config", {{"quant_method", "fp8"}}}}}})},
  };
}

}  // namespace ingot::testing
