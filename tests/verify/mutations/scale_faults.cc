#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "formats/container/bfloat16.h"
#include "tests/verify/mutations/edited_weights.h"
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

}  // namespace ingot::testing
