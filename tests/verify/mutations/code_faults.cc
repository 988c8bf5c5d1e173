#include <array>
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

template <typename T>
void flip(const Pair& pair, const std::string& name, std::size_t i, unsigned mask) {
  edit_tensor(pair.output, name, [&](EditedTensor& tensor) {
    tensor.set<T>(i, static_cast<T>(tensor.get<T>(i) ^ mask));
  });
}

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
void nan_in_zero_block(const Pair& pair) {
  edit_tensor(pair.output, std::string(kZeroWeight), [](EditedTensor& weight) {
    for (std::size_t row = 0; row < 128; ++row)
      for (std::size_t column = 0; column < 128; ++column)
        weight.set<std::uint16_t>(row * weight.shape[1] + column, 0x7FC0);
  });
}

// Its scales, four bits of code to a nibble, sixteen codes to a scale.
void nan_scales_of_zero_block(const Pair& pair) {
  edit_tensor(pair.output, std::string(kZeroWeight) + "_scale", [](EditedTensor& scale) {
    for (std::size_t row = 0; row < 128; ++row)
      for (std::size_t block = 0; block < 8; ++block)
        scale.set<std::uint8_t>(row * scale.shape[1] + block, 0x7F);
  });
}

void router_bias_as_bf16(const Pair& pair) {
  edit_tensor(pair.output, std::string(kRouterBias), [](EditedTensor& bias) {
    EditedTensor rounded{formats::DType::kBf16, bias.shape, std::string(bias.bytes.size() / 2, 0)};
    for (std::size_t i = 0; i < bias.bytes.size() / 4; ++i)
      rounded.set<std::uint16_t>(i, formats::bf16_from_float(bias.get<float>(i)));
    bias = std::move(rounded);
  });
}

constexpr std::array kFaults{
    Fault{"square_weight_transposed", Good::kInt8,
          [](const Pair& pair) { edit_tensor(pair.output, part(kO, "weight"), transpose_square); },
          kO},
    Fault{"square_fp8_weight_transposed", Good::kFp8,
          [](const Pair& pair) { edit_tensor(pair.output, part(kO, "weight"), transpose_square); },
          kO},
    Fault{"nibble_order_swapped", Good::kNvfp4Modelopt,
          [](const Pair& pair) {
            edit_tensor(pair.output, part(kUp, "weight"),
                        [](EditedTensor& codes) { codes.map<std::uint8_t>(swapped_nibbles); });
          },
          kUp},
    Fault{"mx_nibble_order_swapped", Good::kMxfp4,
          [](const Pair& pair) {
            edit_tensor(pair.output, part(kUp, "weight_packed"),
                        [](EditedTensor& codes) { codes.map<std::uint8_t>(swapped_nibbles); });
          },
          kUp},
    Fault{"one_nibble_flipped", Good::kNvfp4Ct,
          [](const Pair& pair) { flip<std::uint8_t>(pair, part(kUp, "weight_packed"), 999, 0x70); },
          kUp},
    Fault{"the_lowest_bit_of_a_nibble_flipped", Good::kMxfp4,
          [](const Pair& pair) { flip<std::uint8_t>(pair, part(kUp, "weight_packed"), 999, 0x01); },
          kUp},
    Fault{"int8_sign_lost", Good::kInt8,
          [](const Pair& pair) {
            edit_tensor(pair.output, part(kUp, "weight"), [](EditedTensor& codes) {
              codes.map<std::int8_t>(
                  [](std::int8_t code) { return static_cast<std::int8_t>(std::abs(code)); });
            });
          },
          kUp},
    Fault{"zero_block_turned_nan", Good::kBf16OfZeros, nan_in_zero_block, kZeroWeight},
    Fault{"scales_of_zero_block_turned_nan", Good::kNvfp4OfZeros, nan_scales_of_zero_block,
          kZeroWeight},
    Fault{"one_bit_of_an_int8_payload_flipped", Good::kInt8,
          [](const Pair& pair) { flip<std::uint8_t>(pair, part(kUp, "weight"), 4321, 1); }, kUp},
    Fault{"one_bit_of_an_fp8_payload_flipped", Good::kFp8,
          [](const Pair& pair) { flip<std::uint8_t>(pair, part(kUp, "weight"), 4321, 1); }, kUp},
    Fault{"one_bit_of_a_bf16_payload_flipped", Good::kBf16,
          [](const Pair& pair) { flip<std::uint16_t>(pair, part(kUp, "weight"), 4321, 1); }, kUp},
    Fault{"one_bit_of_a_norm_flipped", Good::kInt8,
          [](const Pair& pair) { flip<std::uint16_t>(pair, std::string(kNorm), 100, 1); }, kNorm},
    Fault{"one_bit_of_a_router_bias_flipped", Good::kNvfp4Modelopt,
          [](const Pair& pair) { flip<std::uint32_t>(pair, std::string(kRouterBias), 5, 1); },
          kRouterBias},
    Fault{"one_bit_of_a_router_flipped", Good::kNvfp4Modelopt,
          [](const Pair& pair) {
            flip<std::uint16_t>(pair, "model.layers.2.mlp.gate.weight", 700, 1);
          },
          "model.layers.2.mlp.gate.weight"},
    Fault{"values_of_a_router_bias_rounded_to_bf16", Good::kInt8,
          [](const Pair& pair) {
            edit_tensor(pair.output, std::string(kRouterBias), [](EditedTensor& bias) {
              bias.map<float>([](float value) {
                return formats::float_from_bf16(formats::bf16_from_float(value));
              });
            });
          },
          kRouterBias},
    Fault{"router_bias_as_bf16", Good::kInt8, router_bias_as_bf16, kRouterBias},
};

}  // namespace

std::span<const Fault> code_faults() {
  return kFaults;
}

}  // namespace ingot::testing
