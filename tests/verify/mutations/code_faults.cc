#include <cstdint>
#include <cstdlib>

#include "formats/container/bfloat16.h"
#include "tests/verify/mutations/edited_weights.h"
#include "tests/verify/mutations/fault.h"

namespace ingot::testing {
namespace {

constexpr std::string_view kUp = "model.layers.2.mlp.experts.3.up_proj";
constexpr std::string_view kO = "model.layers.3.self_attn.o_proj";
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
