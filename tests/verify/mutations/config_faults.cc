#include "formats/json/json.h"
#include "tests/verify/mutations/edited_weights.h"
#include "tests/verify/mutations/fault.h"

namespace ingot::testing {

using formats::Json;

namespace {

void drop_mtp(const Pair& pair) {
  drop_tensors(pair.output, EditedWeights(pair.output).names("model.layers.5."));
}

void claim_quantization(const Pair& pair) {
  const Json source = formats::read_json_file(pair.source / "config.json", 1 << 20);
  edit_json(pair.output / "config.json",
            {{"/quantization_config", source.at("quantization_config")}});
}

constexpr std::string_view kO = "model.layers.3.self_attn.o_proj";

// Changes config.json, without a word elsewhere.
template <typename Change = std::vector<JsonEdit>>
Fault in_config(std::string_view name, Good good, std::string_view names, const Change& change) {
  return in_json(name, good, "config.json", names, change);
}

Fault with_key(std::string_view name, Good good, std::string_view key, const Json& value) {
  return in_config(name, good, key, {{"/" + std::string(key), value}});
}

// Adds the keys that transformers 5 writes, rightly, in place of two others.
void add_rope_parameters(Json& config) {
  Json rope = config.at("rope_scaling");
  rope["rope_theta"] = config.at("rope_theta");
  rope["rope_type"] = rope.at("type");
  config["rope_parameters"] = std::move(rope);
}

// Says something else in the group of compressed-tensors.
Fault in_group(std::string_view name, std::string_view names, JsonEdit edit) {
  edit.at = "/quantization_config/config_groups/group_0" + edit.at;
  return in_config(name, Good::kInt8, names, {edit});
}

// Says something else in a description of ModelOpt.
Fault in_description(std::string_view name, std::string_view names, JsonEdit edit) {
  edit.at = "/quantization" + edit.at;
  return in_json(name, Good::kNvfp4Modelopt, "hf_quant_config.json", names, {edit});
}

}  // namespace

std::vector<Fault> config_faults() {
  return {
      {"mtp_missing_while_promised", Good::kInt8, drop_mtp, "num_nextn_predict_layers"},
      {"mtp_missing_while_promised_in_nvfp4", Good::kNvfp4Modelopt, drop_mtp,
       "num_nextn_predict_layers"},
      {"quantization_config_over_bf16_weights", Good::kBf16, claim_quantization, "config.json"},
      in_config("no_quantization_config_over_fp8_weights", Good::kFp8, "config",
                {{"/quantization_config"}}),
      in_config("no_quantization_config_over_int8_weights", Good::kInt8, "config",
                {{"/quantization_config"}}),
      in_config("ignore_list_names_a_quantized_module", Good::kInt8, kO,
                {{"/quantization_config/ignore/-", kO}}),
      in_config("ignore_list_lacks_a_plain_module", Good::kInt8, "indexer.wk",
                [](Json& config) {
                  for (Json& entry : config.at("quantization_config").at("ignore")) {
                    if (entry == "re:.*\\.self_attn\\.indexer\\.wk$")
                      entry = "re:.*\\.indexer\\.vk$";
                  }
                }),
      {"exclude_list_names_a_quantized_module", Good::kNvfp4Modelopt,
       [](const Pair& pair) {
         static constexpr const char* kUp = "model.layers.2.mlp.experts.3.up_proj";
         edit_json(pair.output / "config.json", {{"/quantization_config/ignore/-", kUp}});
         edit_json(pair.output / "hf_quant_config.json",
                   {{"/quantization/exclude_modules/-", kUp}});
       },
       "model.layers.2.mlp.experts.3.up_proj"},
      in_json("description_calls_a_quantized_module_plain", Good::kInt8Modelslim,
              "quant_model_description.json", kO,
              [](Json& description) { description[std::string(kO) + ".weight"] = "FLOAT"; }),
      {"description_missing", Good::kInt8Modelslim,
       [](const Pair& pair) {
         std::filesystem::remove(pair.output / "quant_model_description.json");
       },
       "quant_model_description.json"},
      in_config("rope_factor_changed", Good::kInt8, "rope_scaling.factor",
                {{"/rope_scaling/factor", 40}}),
      with_key("rope_theta_changed", Good::kNvfp4Modelopt, "rope_theta", 50000),
      in_config("rope_scaling_lost", Good::kBf16, "rope_scaling", {{"/rope_scaling"}}),
      in_config("wrong_rope_scaling_beside_rope_parameters", Good::kInt8, "rope_scaling.factor",
                [](Json& config) {
                  add_rope_parameters(config);
                  config.at("rope_scaling")["factor"] = 40;
                }),
      in_config("wrong_rope_theta_beside_rope_parameters", Good::kNvfp4Ct, "rope_theta",
                [](Json& config) {
                  add_rope_parameters(config);
                  config["rope_theta"] = 500000;
                }),
      in_config("rope_scaling_without_a_type_beside_rope_parameters", Good::kBf16, "rope_scaling",
                [](Json& config) {
                  add_rope_parameters(config);
                  config.at("rope_scaling").erase("type");
                }),
      in_config("dtype_of_half_precision", Good::kInt8, "dtype", {{"/torch_dtype", "float16"}}),
      with_key("two_dtypes", Good::kNvfp4Modelopt, "dtype", "float16"),
      with_key("rotated_width_that_is_not_the_heads", Good::kInt8, "head_dim", 24),
      with_key("query_width_that_is_not_the_sum", Good::kBf16, "qk_head_dim", 64),
      with_key("biases_that_do_not_exist", Good::kInt8, "mlp_bias", true),
      with_key("layers_without_sparse_attention", Good::kInt8, "layer_types",
               {"indexed_attention", "full_attention", "indexed_attention", "indexed_attention",
                "indexed_attention"}),
      with_key("a_layer_called_dense", Good::kBf16, "mlp_layer_types",
               {"dense", "sparse", "dense", "sparse", "sparse"}),
      with_key("indexers_shared", Good::kInt8, "index_topk_freq", 2),
      with_key("indexer_chooses_fewer", Good::kNvfp4Modelopt, "index_topk", 32),
      with_key("rope_halves_instead_of_pairs", Good::kInt8, "rope_interleave", false),
      with_key("weights_of_experts_not_normalized", Good::kInt8, "norm_topk_prob", false),
      in_config("score_of_experts_lost", Good::kFp8, "scoring_func", {{"/scoring_func"}}),
      with_key("end_of_text_changed", Good::kBf16, "eos_token_id", 7),
      with_key("logits_capped", Good::kInt8, "final_logit_softcapping", 30),
      in_config("fp8_module_listed_as_not_converted", Good::kFp8, kO,
                {{"/quantization_config/modules_to_not_convert", {kO}}}),
      in_config("fp8_attention_ignored_by_vllm", Good::kFp8, "model.layers.3.self_attn",
                {{"/quantization_config/ignored_layers", {"model.layers.3.self_attn"}}}),
      in_config("scale_format_dropped", Good::kFp8, "scale_fmt",
                {{"/quantization_config/scale_fmt"}}),
      in_config(
          "cache_of_keys_quantized", Good::kInt8, "kv_cache_scheme",
          {{"/quantization_config/kv_cache_scheme",
            {{"num_bits", 8}, {"type", "float"}, {"strategy", "tensor"}, {"dynamic", false}}}}),
      in_config("cache_of_keys_quantized_in_fp8", Good::kFp8, "kv_cache_scheme",
                {{"/quantization_config/kv_cache_scheme", {{"num_bits", 8}}}}),
      in_description("cache_of_keys_quantized_by_modelopt", "kv_cache_quant_algo",
                     {"/kv_cache_quant_algo", "FP8"}),
      in_group("activations_of_four_bits", "input_activations", {"/input_activations/num_bits", 4}),
      in_group("asymmetric_activations", "input_activations",
               {"/input_activations/symmetric", false}),
      in_group("asymmetric_weights", "group_0", {"/weights/symmetric", false}),
      in_group("one_activation_scale_for_all_tokens", "input_activations",
               {"/input_activations/strategy", "tensor"}),
      in_config("weights_said_to_be_rotated", Good::kInt8, "transform_config",
                {{"/quantization_config/transform_config",
                  {{"config_groups", {{"R1", {{"type", "hadamard"}}}}}}}}),
      in_description("groups_of_modelopt_twice_as_long", "group_size", {"/group_size", 32}),
      in_config("config_excludes_what_the_description_does_not", Good::kNvfp4Modelopt,
                "model.layers.2.mlp.experts.3.up_proj",
                {{"/quantization_config/ignore/-", "model.layers.2.mlp.experts.3.up_proj"}}),
      in_config("config_names_another_algorithm_than_the_description", Good::kNvfp4Modelopt,
                "quant_algo", {{"/quantization_config/quant_algo", "W4A16_NVFP4"}}),
      with_key("eps_changed", Good::kInt8, "rms_norm_eps", 1e-5),
      with_key("experts_per_token_changed", Good::kNvfp4Ct, "num_experts_per_tok", 2)};
}

}  // namespace ingot::testing
