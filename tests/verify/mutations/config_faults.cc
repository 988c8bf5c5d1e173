
#include "formats/json/json.h"
#include "tests/verify/mutations/edited_weights.h"
#include "tests/verify/mutations/fault.h"

namespace ingot::testing {

using formats::Json;

namespace {

template <typename Change>
void edit_config(const Pair& pair, const Change& change) {
  edit_json(pair.output / "config.json", change);
}

void drop_mtp(const Pair& pair) {
  drop_tensors(pair.output, EditedWeights(pair.output).names("model.layers.5."));
}

void claim_quantization(const Pair& pair) {
  const Json source = formats::read_json_file(pair.source / "config.json", 1 << 20);
  edit_config(pair, [&](Json& config) {
    config["quantization_config"] = source.at("quantization_config");
  });
}

Json& ignored_modules(Json& config) {
  return config.at("quantization_config").at("ignore");
}

constexpr std::string_view kO = "model.layers.3.self_attn.o_proj";

// Sets a key of config.json, without a word elsewhere.
Fault with_key(std::string_view name, Good good, std::string_view key, const Json& value) {
  return in_json(name, good, "config.json", key, [=](Json& config) { config[key] = value; });
}

// Adds what transformers 5 writes instead of two keys, and rightly.
void add_rope_parameters(Json& config) {
  Json rope = config.at("rope_scaling");
  rope["rope_theta"] = config.at("rope_theta");
  rope["rope_type"] = rope.at("type");
  config["rope_parameters"] = std::move(rope);
}

Json& input_activations(Json& config) {
  return config.at("quantization_config").at("config_groups").at("group_0").at("input_activations");
}

// Says something else in a description of ModelOpt.
Fault in_description(std::string_view name, Good good, std::string_view names,
                     const std::function<void(Json&)>& change) {
  return in_json(name, good, "hf_quant_config.json", names,
                 [=](Json& description) { change(description.at("quantization")); });
}

}  // namespace

std::vector<Fault> config_faults() {
  return {
      {"mtp_missing_while_promised", Good::kInt8, drop_mtp, "num_nextn_predict_layers"},
      {"mtp_missing_while_promised_in_nvfp4", Good::kNvfp4Modelopt, drop_mtp,
       "num_nextn_predict_layers"},
      {"quantization_config_over_bf16_weights", Good::kBf16, claim_quantization, "config.json"},
      in_json("no_quantization_config_over_fp8_weights", Good::kFp8, "config.json", "config",
              [](Json& config) { config.erase("quantization_config"); }),
      in_json("no_quantization_config_over_int8_weights", Good::kInt8, "config.json", "config",
              [](Json& config) { config.erase("quantization_config"); }),
      in_json("ignore_list_names_a_quantized_module", Good::kInt8, "config.json", kO,
              [](Json& config) { ignored_modules(config).push_back(kO); }),
      in_json("ignore_list_lacks_a_plain_module", Good::kInt8, "config.json", "indexer.wk",
              [](Json& config) {
                for (Json& entry : ignored_modules(config)) {
                  if (entry == "re:.*\\.self_attn\\.indexer\\.wk$") entry = "re:.*\\.indexer\\.vk$";
                }
              }),
      {"exclude_list_names_a_quantized_module", Good::kNvfp4Modelopt,
       [](const Pair& pair) {
         static constexpr const char* kUp = "model.layers.2.mlp.experts.3.up_proj";
         edit_config(pair, [](Json& config) { ignored_modules(config).push_back(kUp); });
         edit_json(pair.output / "hf_quant_config.json", [](Json& description) {
           description.at("quantization").at("exclude_modules").push_back(kUp);
         });
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
      in_json("rope_factor_changed", Good::kInt8, "config.json", "rope_scaling.factor",
              [](Json& config) { config.at("rope_scaling")["factor"] = 40; }),
      in_json("rope_theta_changed", Good::kNvfp4Modelopt, "config.json", "rope_theta",
              [](Json& config) { config["rope_theta"] = 50000; }),
      in_json("rope_scaling_lost", Good::kBf16, "config.json", "rope_scaling",
              [](Json& config) { config.erase("rope_scaling"); }),
      in_json("wrong_rope_scaling_beside_rope_parameters", Good::kInt8, "config.json",
              "rope_scaling.factor",
              [](Json& config) {
                add_rope_parameters(config);
                config.at("rope_scaling")["factor"] = 40;
              }),
      in_json("wrong_rope_theta_beside_rope_parameters", Good::kNvfp4Ct, "config.json",
              "rope_theta",
              [](Json& config) {
                add_rope_parameters(config);
                config["rope_theta"] = 500000;
              }),
      in_json("rope_scaling_without_a_type_beside_rope_parameters", Good::kBf16, "config.json",
              "rope_scaling",
              [](Json& config) {
                add_rope_parameters(config);
                config.at("rope_scaling").erase("type");
              }),
      in_json("dtype_of_half_precision", Good::kInt8, "config.json", "dtype",
              [](Json& config) { config["torch_dtype"] = "float16"; }),
      in_json("two_dtypes", Good::kNvfp4Modelopt, "config.json", "dtype",
              [](Json& config) { config["dtype"] = "float16"; }),
      with_key("rotated_width_that_is_not_the_heads", Good::kInt8, "head_dim", 32),
      with_key("query_width_that_is_not_the_sum", Good::kBf16, "qk_head_dim", 64),
      with_key("biases_that_do_not_exist", Good::kInt8, "mlp_bias", true),
      in_json("layers_without_sparse_attention", Good::kInt8, "config.json", "layer_types",
              [](Json& config) {
                config["layer_types"] =
                    Json::array({"indexed_attention", "full_attention", "indexed_attention",
                                 "indexed_attention", "indexed_attention"});
              }),
      in_json("a_layer_called_dense", Good::kBf16, "config.json", "mlp_layer_types",
              [](Json& config) {
                config["mlp_layer_types"] =
                    Json::array({"dense", "sparse", "dense", "sparse", "sparse"});
              }),
      with_key("indexers_shared", Good::kInt8, "index_topk_freq", 2),
      with_key("indexer_chooses_fewer", Good::kNvfp4Modelopt, "index_topk", 32),
      with_key("rope_halves_instead_of_pairs", Good::kInt8, "rope_interleave", false),
      with_key("weights_of_experts_not_normalized", Good::kInt8, "norm_topk_prob", false),
      in_json("score_of_experts_lost", Good::kFp8, "config.json", "scoring_func",
              [](Json& config) { config.erase("scoring_func"); }),
      with_key("end_of_text_changed", Good::kBf16, "eos_token_id", 7),
      with_key("logits_capped", Good::kInt8, "final_logit_softcapping", 30),
      in_json("fp8_module_listed_as_not_converted", Good::kFp8, "config.json", kO,
              [](Json& config) {
                config.at("quantization_config")["modules_to_not_convert"] = Json::array({kO});
              }),
      in_json("fp8_attention_ignored_by_vllm", Good::kFp8, "config.json",
              "model.layers.3.self_attn",
              [](Json& config) {
                config.at("quantization_config")["ignored_layers"] =
                    Json::array({"model.layers.3.self_attn"});
              }),
      in_json("scale_format_dropped", Good::kFp8, "config.json", "scale_fmt",
              [](Json& config) { config.at("quantization_config").erase("scale_fmt"); }),
      in_json("cache_of_keys_quantized", Good::kInt8, "config.json", "kv_cache_scheme",
              [](Json& config) {
                config.at("quantization_config")["kv_cache_scheme"] = {
                    {"num_bits", 8}, {"type", "float"}, {"strategy", "tensor"}, {"dynamic", false}};
              }),
      in_json("cache_of_keys_quantized_in_fp8", Good::kFp8, "config.json", "kv_cache_scheme",
              [](Json& config) {
                config.at("quantization_config")["kv_cache_scheme"] = {{"num_bits", 8}};
              }),
      in_description("cache_of_keys_quantized_by_modelopt", Good::kNvfp4Modelopt,
                     "kv_cache_quant_algo",
                     [](Json& said) { said["kv_cache_quant_algo"] = "FP8"; }),
      in_json("activations_of_four_bits", Good::kInt8, "config.json", "input_activations",
              [](Json& config) { input_activations(config)["num_bits"] = 4; }),
      in_json("asymmetric_activations", Good::kInt8, "config.json", "input_activations",
              [](Json& config) { input_activations(config)["symmetric"] = false; }),
      in_json("asymmetric_weights", Good::kInt8, "config.json", "group_0",
              [](Json& config) {
                config.at("quantization_config")
                    .at("config_groups")
                    .at("group_0")
                    .at("weights")["symmetric"] = false;
              }),
      in_json("one_activation_scale_for_all_tokens", Good::kInt8, "config.json",
              "input_activations",
              [](Json& config) { input_activations(config)["strategy"] = "tensor"; }),
      in_json("weights_said_to_be_rotated", Good::kInt8, "config.json", "transform_config",
              [](Json& config) {
                config.at("quantization_config")["transform_config"] = {
                    {"config_groups", {{"R1", {{"type", "hadamard"}}}}}};
              }),
      in_description("groups_of_modelopt_twice_as_long", Good::kNvfp4Modelopt, "group_size",
                     [](Json& said) { said["group_size"] = 32; }),
      in_json("config_excludes_what_the_description_does_not", Good::kNvfp4Modelopt, "config.json",
              "model.layers.2.mlp.experts.3.up_proj",
              [](Json& config) {
                ignored_modules(config).push_back("model.layers.2.mlp.experts.3.up_proj");
              }),
      in_json("config_names_another_algorithm_than_the_description", Good::kNvfp4Modelopt,
              "config.json", "quant_algo",
              [](Json& config) { config.at("quantization_config")["quant_algo"] = "W4A16_NVFP4"; }),
      in_json("eps_changed", Good::kInt8, "config.json", "rms_norm_eps",
              [](Json& config) { config["rms_norm_eps"] = 1e-5; }),
      in_json("experts_per_token_changed", Good::kNvfp4Ct, "config.json", "num_experts_per_tok",
              [](Json& config) { config["num_experts_per_tok"] = 2; })};
}

}  // namespace ingot::testing
