#include <array>

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

// Sets a key, without a word elsewhere.
template <auto kValue>
void set_key(const Pair& pair, const char* key) {
  edit_config(pair, [&](Json& config) { config[key] = kValue; });
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

// Both files of ModelOpt.
template <typename Change>
void edit_description(const Pair& pair, const Change& change) {
  edit_json(pair.output / "hf_quant_config.json",
            [&](Json& description) { change(description.at("quantization")); });
}

constexpr std::array kFaults{
    Fault{"mtp_missing_while_promised", Good::kInt8, drop_mtp, "num_nextn_predict_layers"},
    Fault{"mtp_missing_while_promised_in_nvfp4", Good::kNvfp4Modelopt, drop_mtp,
          "num_nextn_predict_layers"},
    Fault{"quantization_config_over_bf16_weights", Good::kBf16, claim_quantization, "config.json"},
    Fault{"no_quantization_config_over_fp8_weights", Good::kFp8,
          [](const Pair& pair) {
            edit_config(pair, [](Json& config) { config.erase("quantization_config"); });
          },
          "config"},
    Fault{"no_quantization_config_over_int8_weights", Good::kInt8,
          [](const Pair& pair) {
            edit_config(pair, [](Json& config) { config.erase("quantization_config"); });
          },
          "config"},
    Fault{"ignore_list_names_a_quantized_module", Good::kInt8,
          [](const Pair& pair) {
            edit_config(pair, [](Json& config) { ignored_modules(config).push_back(kO); });
          },
          kO},
    Fault{"ignore_list_lacks_a_plain_module", Good::kInt8,
          [](const Pair& pair) {
            edit_config(pair, [](Json& config) {
              for (Json& entry : ignored_modules(config)) {
                if (entry == "re:.*\\.self_attn\\.indexer\\.wk$") entry = "re:.*\\.indexer\\.vk$";
              }
            });
          },
          "indexer.wk"},
    Fault{"exclude_list_names_a_quantized_module", Good::kNvfp4Modelopt,
          [](const Pair& pair) {
            static constexpr const char* kUp = "model.layers.2.mlp.experts.3.up_proj";
            edit_config(pair, [](Json& config) { ignored_modules(config).push_back(kUp); });
            edit_json(pair.output / "hf_quant_config.json", [](Json& description) {
              description.at("quantization").at("exclude_modules").push_back(kUp);
            });
          },
          "model.layers.2.mlp.experts.3.up_proj"},
    Fault{"description_calls_a_quantized_module_plain", Good::kInt8Modelslim,
          [](const Pair& pair) {
            edit_json(pair.output / "quant_model_description.json", [](Json& description) {
              description[std::string(kO) + ".weight"] = "FLOAT";
            });
          },
          kO},
    Fault{"description_missing", Good::kInt8Modelslim,
          [](const Pair& pair) {
            std::filesystem::remove(pair.output / "quant_model_description.json");
          },
          "quant_model_description.json"},
    Fault{"rope_factor_changed", Good::kInt8,
          [](const Pair& pair) {
            edit_config(pair, [](Json& config) { config.at("rope_scaling")["factor"] = 40; });
          },
          "rope_scaling.factor"},
    Fault{"rope_theta_changed", Good::kNvfp4Modelopt,
          [](const Pair& pair) {
            edit_config(pair, [](Json& config) { config["rope_theta"] = 50000; });
          },
          "rope_theta"},
    Fault{"rope_scaling_lost", Good::kBf16,
          [](const Pair& pair) {
            edit_config(pair, [](Json& config) { config.erase("rope_scaling"); });
          },
          "rope_scaling"},
    Fault{"wrong_rope_scaling_beside_rope_parameters", Good::kInt8,
          [](const Pair& pair) {
            edit_config(pair, [](Json& config) {
              add_rope_parameters(config);
              config.at("rope_scaling")["factor"] = 40;
            });
          },
          "rope_scaling.factor"},
    Fault{"wrong_rope_theta_beside_rope_parameters", Good::kNvfp4Ct,
          [](const Pair& pair) {
            edit_config(pair, [](Json& config) {
              add_rope_parameters(config);
              config["rope_theta"] = 500000;
            });
          },
          "rope_theta"},
    Fault{"rope_scaling_without_a_type_beside_rope_parameters", Good::kBf16,
          [](const Pair& pair) {
            edit_config(pair, [](Json& config) {
              add_rope_parameters(config);
              config.at("rope_scaling").erase("type");
            });
          },
          "rope_scaling"},
    Fault{"dtype_of_half_precision", Good::kInt8,
          [](const Pair& pair) {
            edit_config(pair, [](Json& config) { config["torch_dtype"] = "float16"; });
          },
          "dtype"},
    Fault{"two_dtypes", Good::kNvfp4Modelopt,
          [](const Pair& pair) {
            edit_config(pair, [](Json& config) { config["dtype"] = "float16"; });
          },
          "dtype"},
    Fault{"rotated_width_that_is_not_the_heads", Good::kInt8,
          [](const Pair& pair) { set_key<32>(pair, "head_dim"); }, "head_dim"},
    Fault{"query_width_that_is_not_the_sum", Good::kBf16,
          [](const Pair& pair) { set_key<64>(pair, "qk_head_dim"); }, "qk_head_dim"},
    Fault{"biases_that_do_not_exist", Good::kInt8,
          [](const Pair& pair) { set_key<true>(pair, "mlp_bias"); }, "mlp_bias"},
    Fault{"layers_without_sparse_attention", Good::kInt8,
          [](const Pair& pair) {
            edit_config(pair, [](Json& config) {
              config["layer_types"] =
                  Json::array({"indexed_attention", "full_attention", "indexed_attention",
                               "indexed_attention", "indexed_attention"});
            });
          },
          "layer_types"},
    Fault{"a_layer_called_dense", Good::kBf16,
          [](const Pair& pair) {
            edit_config(pair, [](Json& config) {
              config["mlp_layer_types"] =
                  Json::array({"dense", "sparse", "dense", "sparse", "sparse"});
            });
          },
          "mlp_layer_types"},
    Fault{"indexers_shared", Good::kInt8,
          [](const Pair& pair) { set_key<2>(pair, "index_topk_freq"); }, "index_topk_freq"},
    Fault{"indexer_chooses_fewer", Good::kNvfp4Modelopt,
          [](const Pair& pair) { set_key<32>(pair, "index_topk"); }, "index_topk"},
    Fault{"rope_halves_instead_of_pairs", Good::kInt8,
          [](const Pair& pair) { set_key<false>(pair, "rope_interleave"); }, "rope_interleave"},
    Fault{"weights_of_experts_not_normalized", Good::kInt8,
          [](const Pair& pair) { set_key<false>(pair, "norm_topk_prob"); }, "norm_topk_prob"},
    Fault{"score_of_experts_lost", Good::kFp8,
          [](const Pair& pair) {
            edit_config(pair, [](Json& config) { config.erase("scoring_func"); });
          },
          "scoring_func"},
    Fault{"end_of_text_changed", Good::kBf16,
          [](const Pair& pair) { set_key<7>(pair, "eos_token_id"); }, "eos_token_id"},
    Fault{"logits_capped", Good::kInt8,
          [](const Pair& pair) { set_key<30>(pair, "final_logit_softcapping"); },
          "final_logit_softcapping"},
    Fault{"fp8_module_listed_as_not_converted", Good::kFp8,
          [](const Pair& pair) {
            edit_config(pair, [](Json& config) {
              config.at("quantization_config")["modules_to_not_convert"] = Json::array({kO});
            });
          },
          kO},
    Fault{"fp8_attention_ignored_by_vllm", Good::kFp8,
          [](const Pair& pair) {
            edit_config(pair, [](Json& config) {
              config.at("quantization_config")["ignored_layers"] =
                  Json::array({"model.layers.3.self_attn"});
            });
          },
          "model.layers.3.self_attn"},
    Fault{"scale_format_dropped", Good::kFp8,
          [](const Pair& pair) {
            edit_config(pair,
                        [](Json& config) { config.at("quantization_config").erase("scale_fmt"); });
          },
          "scale_fmt"},
    Fault{"cache_of_keys_quantized", Good::kInt8,
          [](const Pair& pair) {
            edit_config(pair, [](Json& config) {
              config.at("quantization_config")["kv_cache_scheme"] = {
                  {"num_bits", 8}, {"type", "float"}, {"strategy", "tensor"}, {"dynamic", false}};
            });
          },
          "kv_cache_scheme"},
    Fault{"cache_of_keys_quantized_in_fp8", Good::kFp8,
          [](const Pair& pair) {
            edit_config(pair, [](Json& config) {
              config.at("quantization_config")["kv_cache_scheme"] = {{"num_bits", 8}};
            });
          },
          "kv_cache_scheme"},
    Fault{"cache_of_keys_quantized_by_modelopt", Good::kNvfp4Modelopt,
          [](const Pair& pair) {
            edit_description(pair, [](Json& said) { said["kv_cache_quant_algo"] = "FP8"; });
          },
          "kv_cache_quant_algo"},
    Fault{"activations_of_four_bits", Good::kInt8,
          [](const Pair& pair) {
            edit_config(pair, [](Json& config) { input_activations(config)["num_bits"] = 4; });
          },
          "input_activations"},
    Fault{"asymmetric_activations", Good::kInt8,
          [](const Pair& pair) {
            edit_config(pair, [](Json& config) { input_activations(config)["symmetric"] = false; });
          },
          "input_activations"},
    Fault{"asymmetric_weights", Good::kInt8,
          [](const Pair& pair) {
            edit_config(pair, [](Json& config) {
              config.at("quantization_config")
                  .at("config_groups")
                  .at("group_0")
                  .at("weights")["symmetric"] = false;
            });
          },
          "group_0"},
    Fault{"one_activation_scale_for_all_tokens", Good::kInt8,
          [](const Pair& pair) {
            edit_config(pair,
                        [](Json& config) { input_activations(config)["strategy"] = "tensor"; });
          },
          "input_activations"},
    Fault{"weights_said_to_be_rotated", Good::kInt8,
          [](const Pair& pair) {
            edit_config(pair, [](Json& config) {
              config.at("quantization_config")["transform_config"] = {
                  {"config_groups", {{"R1", {{"type", "hadamard"}}}}}};
            });
          },
          "transform_config"},
    Fault{"groups_of_modelopt_twice_as_long", Good::kNvfp4Modelopt,
          [](const Pair& pair) {
            edit_description(pair, [](Json& said) { said["group_size"] = 32; });
          },
          "group_size"},
    Fault{"config_excludes_what_the_description_does_not", Good::kNvfp4Modelopt,
          [](const Pair& pair) {
            edit_config(pair, [](Json& config) {
              ignored_modules(config).push_back("model.layers.2.mlp.experts.3.up_proj");
            });
          },
          "model.layers.2.mlp.experts.3.up_proj"},
    Fault{"config_names_another_algorithm_than_the_description", Good::kNvfp4Modelopt,
          [](const Pair& pair) {
            edit_config(pair, [](Json& config) {
              config.at("quantization_config")["quant_algo"] = "W4A16_NVFP4";
            });
          },
          "quant_algo"},
    Fault{"eps_changed", Good::kInt8,
          [](const Pair& pair) {
            edit_config(pair, [](Json& config) { config["rms_norm_eps"] = 1e-5; });
          },
          "rms_norm_eps"},
    Fault{"experts_per_token_changed", Good::kNvfp4Ct,
          [](const Pair& pair) {
            edit_config(pair, [](Json& config) { config["num_experts_per_tok"] = 2; });
          },
          "num_experts_per_tok"},
};

}  // namespace

std::span<const Fault> config_faults() {
  return kFaults;
}

}  // namespace ingot::testing
