#include "formats/base/fd.h"
#include "formats/container/bfloat16.h"
#include "formats/json/json.h"
#include "tests/support/edited_weights.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/verify/mutations/fault.h"

namespace ingot::testing {

namespace {

constexpr std::string_view kUp = "model.layers.2.mlp.experts.3.up_proj";
constexpr std::string_view kO = "model.layers.3.self_attn.o_proj";
// Has two scales of the four that differ from the others, side by side.
constexpr std::string_view kKvA = "model.layers.5.self_attn.kv_a_proj_with_mqa";

// Each row begins with its former second entry.
void rotate_rows(EditedTensor& scale, std::size_t n_columns) {
  for (std::size_t row = 0; row < scale.bytes.size(); row += n_columns) {
    const auto begin = scale.bytes.begin() + static_cast<std::ptrdiff_t>(row);
    std::rotate(begin, begin + 1, begin + static_cast<std::ptrdiff_t>(n_columns));
  }
}

void read_exponents_as_numbers(const Pair& pair) {
  const EditedWeights source(pair.source);
  const EditedTensor& exponents = source.read(part(kUp, "weight_scale"));
  edit_tensor(pair.output, part(kUp, "weight"), [&](EditedTensor& weight) {
    for (std::size_t i = 0; i < weight.bytes.size() / 2; ++i) {
      const int exponent = exponents.get<std::uint8_t>(i / 32);
      const float value = formats::float_from_bf16(weight.get<std::uint16_t>(i));
      const float code = std::ldexp(value, 127 - exponent);
      weight.set<std::uint16_t>(i, formats::bf16_from_float(code * static_cast<float>(exponent)));
    }
  });
}

// Doubles a global scale and halves the block scales: the same values, in another frame.
void part_from_fused_partner(const Pair& pair) {
  EditedWeights weights(pair.output);
  weights.at(part(kUp, "weight_scale_2")).map<float>([](float global) { return 2 * global; });
  weights.at(part(kUp, "weight_scale")).map<std::uint8_t>([](std::uint8_t scale) {
    return static_cast<std::uint8_t>(scale - 8);
  });
  weights.save();
}

}  // namespace

std::vector<Fault> scale_faults() {
  return {
      {"scale_dropped", Good::kInt8,
       [](const Pair& pair) { drop_tensors(pair.output, {part(kUp, "weight_scale")}); }, kUp},
      {"block_scales_dropped", Good::kNvfp4Modelopt,
       [](const Pair& pair) { drop_tensors(pair.output, {part(kUp, "weight_scale")}); }, kUp},
      {"global_scale_dropped", Good::kNvfp4Ct,
       [](const Pair& pair) { drop_tensors(pair.output, {part(kUp, "weight_global_scale")}); },
       kUp},
      in_floats("scale_treated_as_1", Good::kInt8, kUp, "weight_scale", [](float) { return 1.0F; }),
      in_floats("global_scale_treated_as_1", Good::kNvfp4Modelopt, kUp, "weight_scale_2",
                [](float) { return 1.0F; }),
      in_floats("scale_inverted", Good::kFp8, kUp, "weight_scale_inv",
                [](float scale) { return 1 / scale; }),
      in_floats("global_scale_inverted", Good::kNvfp4Ct, kUp, "weight_global_scale",
                [](float scale) { return 1 / scale; }),
      in_tensor("scale_of_the_neighbouring_row", Good::kInt8, kUp, "weight_scale",
                [](EditedTensor& scale) {
                  std::rotate(scale.bytes.begin(), scale.bytes.begin() + 4, scale.bytes.end());
                }),
      in_tensor("scale_of_the_neighbouring_block", Good::kNvfp4Ct, kUp, "weight_scale",
                [](EditedTensor& scale) { rotate_rows(scale, 16); }),
      in_tensor("exponent_of_the_neighbouring_block", Good::kMxfp4, kUp, "weight_scale",
                [](EditedTensor& scale) { rotate_rows(scale, 8); }),
      in_tensor("scales_transposed", Good::kFp8, kKvA, "weight_scale_inv",
                [](EditedTensor& scale) {
                  const auto above = scale.get<float>(1);
                  scale.set<float>(1, scale.get<float>(2));
                  scale.set<float>(2, above);
                }),
      in_tensor("block_scales_transposed", Good::kNvfp4Modelopt, kUp, "weight_scale",
                [](EditedTensor& scale) {
                  const std::string before = scale.bytes;
                  for (std::size_t i = 0; i < before.size(); ++i)
                    scale.bytes[i] = before[i % 128 * 16 + i / 128];
                }),
      in_floats("int8_scales_times_1_01", Good::kInt8, kO, "weight_scale",
                [](float scale) { return scale * 1.01F; }),
      in_floats("int8_scales_times_1_002", Good::kInt8, kO, "weight_scale",
                [](float scale) { return scale * 1.002F; }),
      in_floats("global_scale_times_1_01", Good::kNvfp4Modelopt, kUp, "weight_scale_2",
                [](float scale) { return scale * 1.01F; }),
      in_floats("fp8_scales_times_1_01", Good::kFp8, kO, "weight_scale_inv",
                [](float scale) { return scale * 1.01F; }),
      // The example's values lie on the grid of FP8 rows: none is moved by half a step.
      in_floats("fp8_scales_of_rows_times_1_01", Good::kFp8Channel, kO, "weight_scale",
                [](float scale) { return scale * 1.01F; }),
      in_floats("scales_rounded_to_powers_of_two_after_quantizing", Good::kInt8, kO, "weight_scale",
                [](float scale) { return std::exp2(std::round(std::log2(scale))); }),
      in_tensor("block_scales_rounded_to_powers_of_two_after_quantizing", Good::kNvfp4Modelopt, kUp,
                "weight_scale",
                [](EditedTensor& scale) {
                  // Four exponent bits and three of the mantissa: the next power of two.
                  scale.map<std::uint8_t>([](std::uint8_t code) {
                    return static_cast<std::uint8_t>((code + 4) & 0x78);
                  });
                }),
      in_floats("an_offset_that_is_not_zero", Good::kInt8Modelslim, kUp, "weight_offset",
                [](float) { return 1.0F; }),
      {"exponents_read_as_numbers", Good::kBf16OfMxfp4, read_exponents_as_numbers, kUp},
      in_tensor("exponents_written_as_numbers", Good::kMxfp4, kUp, "weight_scale",
                [](EditedTensor& scale) {
                  scale.map<std::uint8_t>([](std::uint8_t exponent) {
                    return static_cast<std::uint8_t>(std::lround(std::ldexp(1.0, exponent - 127)));
                  });
                }),
      {"gate_and_up_with_different_global_scales", Good::kNvfp4Modelopt, part_from_fused_partner,
       "model.layers.2.mlp.experts.3."},
      flipped<std::uint32_t>("one_bit_of_a_scale_flipped", Good::kInt8, kO, "weight_scale", 77,
                             (1U << 17)),
      flipped<std::uint8_t>("the_lowest_bit_of_a_block_scale_flipped", Good::kNvfp4Ct, kUp,
                            "weight_scale", 500, 1U),
      flipped<std::uint8_t>("the_lowest_bit_of_an_exponent_flipped", Good::kMxfp4, kUp,
                            "weight_scale", 500, 1U),
      in_floats("one_input_scale_of_a_million", Good::kNvfp4Modelopt, kUp, "input_scale",
                [](float) { return 1e6F; }),
      flipped<std::uint32_t>("one_bit_of_a_released_scale_flipped", Good::kFp8, kO,
                             "weight_scale_inv", 1, (1U << 12))};
}

namespace {

constexpr std::string_view kNorm = "model.layers.2.input_layernorm.weight";
constexpr std::string_view kRouterBias = "model.layers.2.mlp.gate.e_score_correction_bias";

std::uint8_t swapped_nibbles(std::uint8_t byte) {
  return static_cast<std::uint8_t>(byte << 4 | byte >> 4);
}

void transpose_square(EditedTensor& weight) {
  const std::size_t n = weight.shape.at(0);
  for (std::size_t row = 0; row < n; ++row)
    for (std::size_t column = 0; column < row; ++column)
      std::swap(weight.bytes[row * n + column], weight.bytes[column * n + row]);
}

// The block of zeros of the source as 0 / 0 makes it.
void nan_in_zero_block(EditedTensor& weight) {
  for (std::size_t row = 0; row < 128; ++row)
    for (std::size_t column = 0; column < 128; ++column)
      weight.set<std::uint16_t>(row * weight.shape[1] + column, 0x7FC0);
}

// Its scales, four bits of code to a nibble, sixteen codes to a scale.
void nan_scales_of_zero_block(EditedTensor& scale) {
  for (std::size_t row = 0; row < 128; ++row)
    for (std::size_t block = 0; block < 8; ++block)
      scale.set<std::uint8_t>(row * scale.shape[1] + block, 0x7F);
}

void router_bias_as_bf16(EditedTensor& bias) {
  EditedTensor rounded{formats::DType::kBf16, bias.shape, std::string(bias.bytes.size() / 2, 0)};
  for (std::size_t i = 0; i < bias.bytes.size() / 4; ++i)
    rounded.set<std::uint16_t>(i, formats::bf16_from_float(bias.get<float>(i)));
  bias = std::move(rounded);
}

}  // namespace

std::vector<Fault> code_faults() {
  return {
      in_tensor("square_weight_transposed", Good::kInt8, kO, "weight", transpose_square),
      in_tensor("square_fp8_weight_transposed", Good::kFp8, kO, "weight", transpose_square),
      in_tensor("nibble_order_swapped", Good::kNvfp4Modelopt, kUp, "weight",
                [](EditedTensor& codes) { codes.map<std::uint8_t>(swapped_nibbles); }),
      in_tensor("mx_nibble_order_swapped", Good::kMxfp4, kUp, "weight_packed",
                [](EditedTensor& codes) { codes.map<std::uint8_t>(swapped_nibbles); }),
      flipped<std::uint8_t>("one_nibble_flipped", Good::kNvfp4Ct, kUp, "weight_packed", 999, 0x70),
      flipped<std::uint8_t>("the_lowest_bit_of_a_nibble_flipped", Good::kMxfp4, kUp,
                            "weight_packed", 999, 0x01),
      in_tensor("int8_sign_lost", Good::kInt8, kUp, "weight",
                [](EditedTensor& codes) {
                  codes.map<std::int8_t>(
                      [](std::int8_t code) { return static_cast<std::int8_t>(std::abs(code)); });
                }),
      in_tensor("zero_block_turned_nan", Good::kBf16OfZeros, kZeroWeight, "", nan_in_zero_block),
      {"scales_of_zero_block_turned_nan", Good::kNvfp4OfZeros,
       [](const Pair& pair) {
         edit_tensor(pair.output, std::string(kZeroWeight) + "_scale", nan_scales_of_zero_block);
       },
       kZeroWeight},
      flipped<std::uint8_t>("one_bit_of_an_int8_payload_flipped", Good::kInt8, kUp, "weight", 4321,
                            1),
      flipped<std::uint8_t>("one_bit_of_an_fp8_payload_flipped", Good::kFp8, kUp, "weight", 4321,
                            1),
      flipped<std::uint16_t>("one_bit_of_a_bf16_payload_flipped", Good::kBf16, kUp, "weight", 4321,
                             1),
      flipped<std::uint16_t>("one_bit_of_a_norm_flipped", Good::kInt8, kNorm, "", 100, 1),
      flipped<std::uint32_t>("one_bit_of_a_router_bias_flipped", Good::kNvfp4Modelopt, kRouterBias,
                             "", 5, 1),
      flipped<std::uint16_t>("one_bit_of_a_router_flipped", Good::kNvfp4Modelopt,
                             "model.layers.2.mlp.gate.weight", "", 700, 1),
      in_tensor("values_of_a_router_bias_rounded_to_bf16", Good::kInt8, kRouterBias, "",
                [](EditedTensor& bias) {
                  bias.map<float>([](float value) {
                    return formats::float_from_bf16(formats::bf16_from_float(value));
                  });
                }),
      in_tensor("router_bias_as_bf16", Good::kInt8, kRouterBias, "", router_bias_as_bf16)};
}

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

namespace fs = std::filesystem;

namespace {

constexpr const char* kFirst = "model-00001-of-00002.safetensors";
constexpr const char* kSecond = "model-00002-of-00002.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr std::string_view kExpertUpWeight = "model.layers.2.mlp.experts.3.up_proj.weight";

void truncate_file(const Pair& pair) {
  const fs::path path = pair.output / kSecond;
  std::string bytes = read_text_file(path, 1 << 30);
  bytes.resize(bytes.size() - 100);
  fs::remove(path);
  write_bytes(path, bytes);
}

// A row less, and a header that says so.
void truncate_tensor(const Pair& pair) {
  EditedWeights weights(pair.output);
  for (const std::string& name :
       {std::string(kExpertUpWeight), std::string(kExpertUpWeight) + "_scale"}) {
    EditedTensor& tensor = weights.at(name);
    tensor.bytes.resize(tensor.bytes.size() / tensor.shape[0] * (tensor.shape[0] - 1));
    --tensor.shape[0];
  }
  weights.save();
}

void name_other_file_in_index(const Pair& pair) {
  edit_json(pair.output / kIndex, [](formats::Json& index) {
    formats::Json& file = index.at("weight_map").at(std::string(kExpertUpWeight));
    file = file == kFirst ? kSecond : kFirst;
  });
}

void name_absent_tensor_in_index(const Pair& pair) {
  edit_json(pair.output / kIndex, [](formats::Json& index) {
    index.at("weight_map")["model.layers.2.mlp.experts.16.up_proj.weight"] = kFirst;
  });
}

void drop_name_from_index(const Pair& pair) {
  edit_json(pair.output / kIndex, [](formats::Json& index) {
    index.at("weight_map").erase(std::string(kExpertUpWeight));
  });
}

void leave_old_shard(const Pair& pair) {
  fs::copy_file(pair.output / kFirst, pair.output / "model-00003-of-00003.safetensors");
}

void exchange_two_ids(const Pair& pair) {
  edit_json(pair.output / "tokenizer.json", [](formats::Json& tokenizer) {
    formats::Json& words = tokenizer.at("model").at("vocab");
    std::swap(words.at("Ġthe"), words.at("in"));
  });
}

void add_file(const Pair& pair, const char* name, std::string_view text) {
  std::ofstream(pair.output / name) << text;
}

}  // namespace

std::vector<Fault> file_faults() {
  return {
      {"chat_template_added", Good::kInt8,
       [](const Pair& pair) { add_file(pair, "chat_template.jinja", "{{ messages[0].content }}"); },
       "chat_template.jinja"},
      {"added_tokens_added", Good::kBf16,
       [](const Pair& pair) { add_file(pair, "added_tokens.json", R"({"<x>": 5})"); },
       "added_tokens.json"},
      {"special_tokens_map_added", Good::kNvfp4Ct,
       [](const Pair& pair) {
         add_file(pair, "special_tokens_map.json", R"({"eos_token": "the"})");
       },
       "special_tokens_map.json"},
      {"adapter_added", Good::kFp8,
       [](const Pair& pair) { add_file(pair, "adapter_config.json", R"({"r": 8})"); },
       "adapter_config.json"},
      {"file_truncated", Good::kInt8, truncate_file, kSecond},
      {"tensor_truncated", Good::kInt8, truncate_tensor, kExpertUpWeight},
      {"stale_index_names_another_file", Good::kInt8, name_other_file_in_index, kExpertUpWeight},
      {"stale_index_names_an_absent_tensor", Good::kBf16, name_absent_tensor_in_index,
       "model.layers.2.mlp.experts.16.up_proj.weight"},
      {"stale_index_lacks_a_tensor", Good::kNvfp4Modelopt, drop_name_from_index, kExpertUpWeight},
      {"stray_old_shard", Good::kInt8, leave_old_shard, "model-00003-of-00003.safetensors"},
      {"tokenizer_of_another_model", Good::kInt8, exchange_two_ids, "tokenizer.json"},
      {"tokenizer_missing", Good::kNvfp4Ct,
       [](const Pair& pair) { fs::remove(pair.output / "tokenizer.json"); }, "tokenizer.json"},
      in_json("generation_config_changed", Good::kBf16, "generation_config.json",
              "generation_config.json", [](auto& config) { config["temperature"] = 0.123; })};
}

namespace {

constexpr std::string_view kExperts = "model.layers.2.mlp.experts.";

// Parts of modules below two prefixes, one by one.
template <typename Pairwise>
void for_each_twin(const Pair& pair, const std::string& a, const std::string& b,
                   const Pairwise& pairwise) {
  EditedWeights weights(pair.output);
  for (const std::string& name : weights.names(a))
    pairwise(weights, name, b + name.substr(a.size()));
  weights.save();
}

void exchange(const Pair& pair, const std::string& a, const std::string& b) {
  for_each_twin(pair, a, b, [](EditedWeights& weights, const auto& first, const auto& second) {
    weights.exchange(first, second);
  });
}

std::string expert(int number, const char* projection = "") {
  return std::string(kExperts) + std::to_string(number) + "." + projection;
}

void exchange_gate_and_up(const Pair& pair) {
  exchange(pair, expert(3, "gate_proj."), expert(3, "up_proj."));
}

void exchange_experts(const Pair& pair) {
  exchange(pair, expert(3), expert(9));
}

void copy_expert(const Pair& pair) {
  for_each_twin(pair, expert(9), expert(3),
                [](EditedWeights& weights, const auto& from, const auto& to) {
                  weights.at(to).bytes = weights.read(from).bytes;
                });
}

void exchange_layers(const Pair& pair) {
  exchange(pair, "model.layers.2.", "model.layers.3.");
}

void replace_norm(const Pair& pair) {
  EditedWeights weights(pair.output);
  weights.at("model.layers.2.input_layernorm.weight").bytes =
      weights.read("model.layers.3.input_layernorm.weight").bytes;
  weights.save();
}

// Rows of query head 5, of 32 + 16 values.
void zero_head(const Pair& pair) {
  constexpr std::size_t kHeadRows = 48;
  EditedWeights weights(pair.output);
  EditedTensor& query = weights.at("model.layers.2.self_attn.q_b_proj.weight");
  const std::size_t head_bytes = query.bytes.size() / query.shape[0] * kHeadRows;
  query.bytes.replace(5 * head_bytes, head_bytes, head_bytes, '\0');
  weights.save();
}

}  // namespace

std::vector<Fault> module_faults() {
  return {
      {"gate_and_up_swapped", Good::kInt8, exchange_gate_and_up, kExperts},
      {"gate_and_up_swapped_in_nvfp4", Good::kNvfp4Modelopt, exchange_gate_and_up, kExperts},
      {"experts_weights_under_anothers_name", Good::kInt8, copy_expert, kExperts},
      {"experts_weights_under_anothers_name_in_nvfp4", Good::kNvfp4Ct, copy_expert, kExperts},
      {"two_experts_swapped", Good::kInt8, exchange_experts, kExperts},
      {"two_experts_swapped_in_mxfp4", Good::kMxfp4, exchange_experts, kExperts},
      {"a_layers_norm_replaced", Good::kNvfp4Modelopt, replace_norm,
       "model.layers.2.input_layernorm.weight"},
      {"one_attention_head_zeroed", Good::kBf16, zero_head, "model.layers.2.self_attn.q_b_proj"},
      {"one_attention_head_zeroed_in_int8", Good::kInt8, zero_head,
       "model.layers.2.self_attn.q_b_proj"},
      {"two_layers_exchanged", Good::kInt8, exchange_layers, "model.layers.2."},
      {"two_layers_exchanged_in_nvfp4", Good::kNvfp4Ct, exchange_layers, "model.layers.2."}};
}

namespace {

// Every BF16 number of the model.
template <int Percent>
void multiply_bf16(const Pair& pair) {
  constexpr float kFactor = static_cast<float>(Percent) / 100;
  EditedWeights weights(pair.output);
  for (const std::string& name : weights.names()) {
    if (weights.read(name).dtype != formats::DType::kBf16) continue;
    weights.at(name).map<std::uint16_t>([](std::uint16_t value) {
      return formats::bf16_from_float(formats::float_from_bf16(value) * kFactor);
    });
  }
  weights.save();
}

// Every F32 scale that multiplies.
template <int Percent>
void multiply_scales(const Pair& pair, const char* suffix) {
  constexpr float kFactor = static_cast<float>(Percent) / 100;
  EditedWeights weights(pair.output);
  for (const std::string& name : weights.names("", suffix)) {
    if (weights.read(name).dtype != formats::DType::kF32) continue;
    weights.at(name).map<float>([](float scale) { return scale * kFactor; });
  }
  weights.save();
}

// Which of them are among the worst is left open.
constexpr std::string_view kAny = "model.layers.";

}  // namespace

std::vector<Fault> model_faults() {
  return {{"every_weight_times_1_01", Good::kBf16, multiply_bf16<101>, kAny},
          {"every_weight_times_2", Good::kBf16, multiply_bf16<200>, kAny},
          {"every_int8_weight_times_1_01", Good::kInt8,
           [](const Pair& pair) { multiply_scales<101>(pair, ".weight_scale"); }, kAny},
          {"every_int8_weight_times_2", Good::kInt8,
           [](const Pair& pair) { multiply_scales<200>(pair, ".weight_scale"); }, kAny},
          {"every_nvfp4_weight_times_1_01", Good::kNvfp4Modelopt,
           [](const Pair& pair) { multiply_scales<101>(pair, ".weight_scale_2"); }, kAny},
          {"every_nvfp4_weight_times_2", Good::kNvfp4Modelopt,
           [](const Pair& pair) { multiply_scales<200>(pair, ".weight_scale_2"); }, kAny},
          {"every_fp8_weight_times_2", Good::kFp8,
           [](const Pair& pair) { multiply_scales<200>(pair, ".weight_scale_inv"); }, kAny}};
}

namespace {

constexpr std::string_view kDense = "model.layers.0.mlp.";

fs::path rank_of_int8(const Pair& pair, int rank) {
  return pair.output / ("rank-0000" + std::to_string(rank) + "-of-00002");
}

fs::path rank_of_nvfp4(const Pair& pair, int rank) {
  return pair.output / ("rank-0000" + std::to_string(rank) + "-of-00004");
}

// As if [gate; up], stacked, had been cut in two: the second half of gate where rank 0 has up, the
// first of up where rank 1 has gate.
void cut_up_as_part_of_gate(const Pair& pair) {
  EditedWeights first(rank_of_int8(pair, 0)), second(rank_of_int8(pair, 1));
  for (const char* name : {"weight", "weight_scale"}) {
    std::swap(first.at(std::string(kDense) + "up_proj." + name).bytes,
              second.at(std::string(kDense) + "gate_proj." + name).bytes);
  }
  first.save();
  second.save();
}

void drop_expert(const Pair& pair) {
  const fs::path rank = rank_of_nvfp4(pair, 2);
  drop_tensors(rank, EditedWeights(rank).names("model.layers.3.mlp.experts.9."));
}

void change_replica(const Pair& pair) {
  EditedWeights weights(rank_of_int8(pair, 1));
  EditedTensor& norm = weights.at(std::string(kNorm));
  norm.set<std::uint8_t>(33, norm.get<std::uint8_t>(33) ^ 1U);
  weights.save();
}

void exchange_experts_of_ranks(const Pair& pair) {
  EditedWeights first(rank_of_nvfp4(pair, 0)), third(rank_of_nvfp4(pair, 2));
  const std::string here = "model.layers.3.mlp.experts.1.", there = "model.layers.3.mlp.experts.9.";
  for (const std::string& name : first.names(here))
    std::swap(first.at(name).bytes, third.at(there + name.substr(here.size())).bytes);
  first.save();
  third.save();
}

void replace_by_slice_of_other_rank(const Pair& pair) {
  const EditedWeights first(rank_of_int8(pair, 0));
  EditedWeights second(rank_of_int8(pair, 1));
  const std::string name = "model.layers.2.self_attn.q_b_proj.weight";
  second.at(name).bytes = first.read(name).bytes;
  second.save();
}

void bring_slice_of_other_topology(const Pair& pair) {
  const TempDir directory;
  convert_for_other_topology(directory / "tp4");
  const fs::path file = rank_of_int8(pair, 1) / "tp-01-of-02-00001-of-00001.safetensors";
  fs::remove(file);
  fs::copy_file(directory / "tp4/rank-00001-of-00004/tp-01-of-04-00001-of-00001.safetensors", file);
}

constexpr const char* kShard0 = "model0-mp2.safetensors";
constexpr const char* kShard1 = "model1-mp2.safetensors";

// Both shards have the same names: each is edited in a directory of its own.
template <typename Change>
void edit_shards(const Pair& pair, const Change& change) {
  const TempDir directory;
  for (const char* shard : {kShard0, kShard1}) {
    fs::create_directory(directory / shard);
    fs::rename(pair.output / shard, fs::path(directory / shard) / shard);
  }
  EditedWeights first(directory / kShard0), second(directory / kShard1);
  change(first, second);
  first.save();
  second.save();
  for (const char* shard : {kShard0, kShard1})
    fs::copy_file(fs::path(directory / shard) / shard, pair.output / shard);
}

void change_replica_of_shard(const Pair& pair) {
  edit_shards(pair, [](EditedWeights&, EditedWeights& second) {
    EditedTensor& norm = second.at("layers.2.attn_norm.weight");
    norm.set<std::uint8_t>(33, norm.get<std::uint8_t>(33) ^ 1U);
  });
}

void exchange_slices_of_shards(const Pair& pair) {
  edit_shards(pair, [](EditedWeights& first, EditedWeights& second) {
    const char* name = "layers.2.attn.wo.weight";
    std::swap(first.at(name).bytes, second.at(name).bytes);
  });
}

void drop_expert_of_shard(const Pair& pair) {
  edit_shards(pair, [](EditedWeights&, EditedWeights& second) {
    for (const std::string& name : second.names("layers.3.ffn.experts.9.")) second.erase(name);
  });
}

}  // namespace

std::vector<Fault> slice_faults() {
  return {{"up_cut_as_part_of_gate", Good::kInt8Ranks, cut_up_as_part_of_gate, kDense},
          {"expert_missing_on_one_rank", Good::kNvfp4Ranks, drop_expert,
           "model.layers.3.mlp.experts.9."},
          {"replica_differing_by_one_byte", Good::kInt8Ranks, change_replica, kNorm},
          {"experts_of_two_ranks_swapped", Good::kNvfp4Ranks, exchange_experts_of_ranks,
           "model.layers.3.mlp.experts."},
          {"slice_of_another_rank", Good::kInt8Ranks, replace_by_slice_of_other_rank,
           "model.layers.2.self_attn.q_b_proj"},
          {"slice_of_another_topology", Good::kInt8Ranks, bring_slice_of_other_topology,
           "tp-01-of-02-00001-of-00001.safetensors"},
          {"replica_of_a_shard_differing_by_one_byte", Good::kBf16Shards, change_replica_of_shard,
           kNorm},
          {"slices_of_two_shards_swapped", Good::kBf16Shards, exchange_slices_of_shards,
           "model.layers.2.self_attn.o_proj"},
          {"expert_missing_in_a_shard", Good::kBf16Shards, drop_expert_of_shard, "experts.9."},
          in_json("rope_factor_changed_in_the_native_config", Good::kBf16Shards,
                  "inference_config.json", "rope_factor",
                  [](auto& config) { config["rope_factor"] = 40; }),
          {"eps_changed_on_one_rank", Good::kInt8Ranks,
           [](const Pair& pair) {
             edit_json(rank_of_int8(pair, 1) / "config.json",
                       [](auto& config) { config["rms_norm_eps"] = 1e-5; });
           },
           "rms_norm_eps"},
          {"tokenizer_of_another_model_on_one_rank", Good::kInt8Ranks,
           [](const Pair& pair) {
             edit_json(rank_of_int8(pair, 1) / "tokenizer_config.json",
                       [](auto& config) { config["model_max_length"] = 77; });
           },
           "rank-00001-of-00002/tokenizer_config.json"}};
}

}  // namespace ingot::testing
