#include "tests/check/rules/rule_fixture.h"
#include "tests/support/test.h"

namespace ingot::testing {

using enum ErrorCode;
using enum formats::Activations;
using enum formats::SchemeId;
using formats::DType;

namespace {

/// A plain model with one head of keys less than of queries.
EditableCheckpoint make_odd_heads() {
  EditableCheckpoint checkpoint = make_synthetic([](formats::SynthOptions& options) {
    options.family = formats::find_family("qwen3_moe");
    options.fp8 = false;
  });
  const std::uint64_t heads = checkpoint.config.at("num_attention_heads");
  const std::uint64_t width = checkpoint.config.at("head_dim");
  const std::uint64_t hidden = checkpoint.config.at("hidden_size");
  checkpoint.config["num_key_value_heads"] = heads - 1;
  for (const auto& [name, tensor] : std::map(checkpoint.tensors)) {
    if (name.ends_with(".k_proj.weight") || name.ends_with(".v_proj.weight"))
      checkpoint.put_zeros(name, DType::kBf16, {(heads - 1) * width, hidden});
  }
  return checkpoint;
}

}  // namespace

std::vector<RuleFixture> model_fixtures() {
  const std::string bias = kMoe + "gate.e_score_correction_bias";
  return {
      {"container.metadata-format", kNotFound, make_fp8, [](auto& c) { c.with_metadata = false; }},
      {"container.entry-point", kNotFound, make_fp8,
       [](auto& c) { c.file_name = "weights.safetensors"; }},
      {"container.no-adapter", kMismatch, make_fp8,
       [](auto& c) {
         c.descriptions["adapter_config.json"] = {{"peft_type", "LORA"}};
       }},
      {"config.contradiction", kMismatch, make_fp8, in_config({{"/qk_head_dim", 7}})},
      {"config.contradiction", kMismatch, make_fp8,
       in_config({{"/rope_parameters", {{"rope_type", "default"}, {"rope_theta", 12345}}}})},
      {"config.contradiction",
       kMismatch,
       make_fp8,
       in_config({{"/mlp_layer_types", {"sparse", "sparse"}}}),
       {"model.complete", "moe.expert-ids", "router.correction-bias"}},
      {"config.class", kNotFound, make_fp8, in_config({{"/architectures", nullptr}})},
      {"config.class", kNotFound, make_fp8,
       in_config({{"/architectures", formats::Json::array()}})},
      {"config.class", kNotFound, make_fp8, in_config({{"/architectures", {""}}})},
      {"config.class", kMismatch, make_fp8, in_config({{"/architectures", {"LlamaForCausalLM"}}})},
      {"config.class", kMismatch, make_fp8, in_config({{"/architectures", {"WrongForCausalLM"}}})},
      {"config.code-present", kNotFound, make_fp8,
       in_config({{"/auto_map", {{"AutoConfig", "configuration_own.OwnConfig"}}}})},
      {"config.code-present", kNotFound, make_fp8,
       [](auto& c) {
         c.descriptions["tokenizer_config.json"]["auto_map"]["AutoTokenizer"] = {
             "tokenization_own.OwnTokenizer", nullptr};
       }},
      {"config.rope-factor", kCorrupt, make_fp8,
       in_config({{"/rope_scaling", {{"type", "yarn"}}}})},
      {"config.rope-factor", kCorrupt, make_fp8,
       in_config({{"/rope_scaling", {{"rope_type", "yarn"}, {"factor", 0}}}})},
      {"config.rope-factor", kCorrupt, make_fp8,
       in_config({{"/rope_scaling",
                   {{"sliding_attention", {{"rope_type", "default"}}},
                    {"full_attention", {{"rope_type", "linear"}, {"factor", nullptr}}}}}})},
      {"config.rope-factor", kCorrupt, make_fp8,
       in_config(
           {{"/rope_scaling", {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 1}}}})},
      {"config.rope-type", kUnsupported, make_fp8,
       in_config({{"/rope_scaling", {{"rope_type", "yarm"}, {"factor", 4}}}})},
      {"config.rope-type", kUnsupported, make_fp8,
       in_config({{"/rope_scaling", {{"full_attention", {{"type", "linaer"}, {"factor", 4}}}}}})},
      {"config.activation", kUnsupported, make_fp8, in_config({{"/hidden_act", "silo"}})},
      {"config.activation", kUnsupported, make_fp8, in_config({{"/mlp_hidden_act", "Silu"}})},
      {"config.key-heads", kMismatch, make_odd_heads},
      {"quantized.leftover-file", kMismatch, make_plain,
       [](auto& c) {
         c.descriptions["quantize_config.json"] = {{"bits", 4}, {"group_size", 128}};
       }},
      {"config.context-length", kCorrupt, make_fp8, in_config({{"/max_position_embeddings", 0}})},
      {"config.layer-lists", kMismatch, make_fp8,
       in_config({{"/layer_types", {"full_attention"}}})},
      {"tokenizer.present", kNotFound, make_fp8,
       [](auto& c) { c.descriptions.erase("tokenizer.json"); }},
      {"tokenizer.readable", kCorrupt, make_fp8, in_file("tokenizer.json", {{"/model", nullptr}})},
      {"tokenizer.readable", kCorrupt, make_fp8,
       in_file("tokenizer.json", {{"/model/vocab", formats::Json::object()}})},
      {"tokenizer.rows", kMismatch, make_fp8,
       in_file("tokenizer.json",
               {{"/added_tokens",
                 formats::Json::array({{{"id", 1'000'000}, {"content", "<|extra|>"}}})}})},
      {"fused.scheme", kMismatch, make_fp8,
       [](auto& c) {
         make_weight_plain(c, kDense + "gate_proj.weight");
         quantization(c)["modules_to_not_convert"] = {"lm_head", kDense + "gate_proj"};
       }},
      {"cut.group-edge", kShapeMismatch, make_fp8, {}, {}, 2},
      {"moe.expert-ids", kMissingTensor, make_fp8,
       [](auto& c) { EXPECT_EQ(c.erase_prefix(kMoe + "experts.3."), 6U); }},
      {"moe.routing", kCorrupt, make_fp8, in_config({{"/n_group", 3}})},
      {"moe.routing", kCorrupt, make_fp8, in_config({{"/n_group", 4}, {"/topk_group", 4}})},
      {"moe.routing", kCorrupt, make_fp8, in_config({{"/topk_group", 1}, {"/n_group", 4}})},
      {"moe.routing", kCorrupt, make_fp8, in_config({{"/num_experts_per_tok", 5}})},
      {"moe.stacked-shape", kShapeMismatch, make_plain,
       [](auto& c) {
         EXPECT_EQ(c.erase_prefix(kMoe + "experts."), 12U);
         c.put_zeros(kMoe + "experts.gate_up_proj", DType::kBf16, {4, 256, 256});
         c.put_zeros(kMoe + "experts.down_proj", DType::kBf16, {4, 128, 128});
       }},
      {"router.correction-bias", kMissingTensor, make_fp8, [=](auto& c) { c.tensors.erase(bias); }},
      {"router.correction-bias-dtype", kDtypeMismatch, make_fp8,
       [=](auto& c) { c.put_zeros(bias, DType::kBf16, {4}); }},
      {"indexer.complete", kMissingTensor, make_fp8,
       [](auto& c) { c.tensors.erase(kAttention + "indexer.k_norm.bias"); }},
      {"indexer.k-scheme", kMismatch, make_plain,
       [](auto& c) {
         const std::string wk = kAttention + "indexer.wk.weight";
         c.put_floats(wk, c.at(wk).shape, 1);
       }},
      {"indexer.built", kMismatch, make_fp8,
       [](auto& c) {
         c.config["index_topk_freq"] = 2;
         c.config["index_skip_topk_offset"] = 1;
       }},
      {"indexer.built", kMismatch, make_fp8,
       [](auto& c) {
         c.config["indexer_types"] = {"full", "shared", "full"};
         EXPECT_GT(c.erase_prefix("model.layers.1.self_attn.indexer."), 3U);
       }},
      {"mtp.present", kMissingTensor, make_fp8,
       [](auto& c) { EXPECT_GT(c.erase_prefix(kMtp), 20U); }},
      {"mtp.counted", kMismatch, make_fp8, in_config({{"/num_nextn_predict_layers", 0}})},
      {"mtp.counted", kMismatch, make_fp8, in_config({{"/num_nextn_predict_layers", nullptr}})},
      {"mtp.complete", kMissingTensor, make_fp8,
       [](auto& c) { c.tensors.erase(kMtp + "enorm.weight"); }},
      {"model.tied-head", kMismatch, make_fp8, in_config({{"/tie_word_embeddings", true}})},
      {"model.tied-table", kMissingTensor, make_fp8,
       [](auto& c) {
         c.config["tie_word_embeddings"] = true;
         c.tensors.erase("model.embed_tokens.weight");
       }},
      {"model.stray-part", kUnknownTensor, make_fp8,
       [](auto& c) { c.put_floats(kDense + "gate_proj.input_quantizer._amax", {1}, 1); }},
      {"model.class-head", kMissingTensor, make_fp8,
       [](auto& c) {
         c.config["architectures"] = {"DeepseekV3ForSequenceClassification"};
         c.tensors.erase("lm_head.weight");
       }},
      {"model.bare-names", kMismatch, make_plain,
       [](auto& c) {
         constexpr std::string_view kModel = "model.";
         auto named = std::exchange(c.tensors, {});
         for (auto& [name, tensor] : named) {
           const bool is_of_model = name.starts_with(kModel);
           c.tensors.emplace(is_of_model ? name.substr(kModel.size()) : name, std::move(tensor));
         }
       }},
      {"model.complete", kMissingTensor, make_fp8,
       [](auto& c) { c.tensors.erase("model.norm.weight"); }},
      {"model.shape", kShapeMismatch, make_fp8,
       [](auto& c) { c.put_zeros("model.norm.weight", DType::kF32, {255}); }},
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

namespace {

constexpr const char* kCt = "compressed-tensors";

/// Experts as they were, everything else as `spelled` says.
EditableCheckpoint make_with_plain_experts(const Spelled& spelled) {
  EditableCheckpoint checkpoint = make_spelled(spelled);
  const EditableCheckpoint plain = make_plain();
  for (const auto& [name, tensor] : plain.tensors) {
    if (name.find(".experts.") == std::string::npos) continue;
    make_weight_plain(checkpoint, name);
  }
  quantization(checkpoint)["ignore"].push_back("re:.*\\.experts\\..*");
  return checkpoint;
}

}  // namespace

std::vector<RuleFixture> engine_fixtures() {
  return {
      {"engine.refused-by-all", kUnsupported, spelled(kCt, kFp8Tensor, kDynamic)},
      {"engine.refused-by-all", kUnsupported, spelled(kCt, kInt8Channel, kStatic)},
      // One engine by its experts, the other by all that is not.
      {"engine.refused-by-all",
       kUnsupported,
       spelled("modelopt", kFp8Channel, kDynamic),
       {},
       {"modelopt.algo-of-sglang"}},
      {"engine.refused-by-vllm", kUnsupported, spelled("deepseek", kInt8Block, kDynamic)},
      {"engine.refused-by-sglang", kUnsupported, spelled(kCt, kMxfp4, kWeightOnly)},
      // It loads with an option, even if others refuse.
      {"engine.options-of-sglang", kUnsupported, spelled(kCt, kInt8Channel, kDynamic)},
      {"int8.plain-experts",
       kMismatch,
       spelled("deepseek", kInt8Block, kDynamic),
       [](auto& c) {
         const EditableCheckpoint spelled = c;
         for (const auto& [name, tensor] : spelled.tensors) {
           if (name.starts_with("model.layers.1.mlp.experts.") && name.ends_with(".weight"))
             make_weight_plain(c, name);
         }
         quantization(c)["ignored_layers"].push_back("model.layers.1.mlp.experts");
       },
       {"engine.refused-by-vllm"}},
      // No engine takes linears of this kind, whatever the experts are.
      {"engine.refused-by-all", kUnsupported,
       [] {
         return make_with_plain_experts({kCt, kFp8Block, kWeightOnly});
       }},
      // 32 of the experts' 128 on a rank: no multiple of 64, and no more than a group.
      {"engine.refused-by-vllm",
       kUnsupported,
       spelled(kCt, kMxfp4, kWeightOnly),
       {},
       {"engine.refused-by-sglang"},
       4},
      {"engine.options-of-vllm",
       kUnsupported,
       spelled(kCt, kInt4Group, kWeightOnly),
       {},
       {"engine.options-of-sglang", "engine.refused-by-sglang"},
       4},
      {"awq.unsaid-zeros", kMismatch,
       [] {
         return EditableCheckpoint::load(INGOT_SOURCE_DIR "/tests/golden/families/qwen3_moe_awq");
       },
       in_quantization({{"/zero_point", false}})},
  };
}

}  // namespace ingot::testing
