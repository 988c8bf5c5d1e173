// INT8 codes -127 to 127 under F32 scales, one per row or per block.

#include <algorithm>
#include <array>

#include "quantize/group_encoder.h"
#include "quantize/kernels/code_decode.h"
#include "quantize/schemes.h"

namespace ingot::quantize {
namespace {

/// The F32 machine epsilon, which the tools use as floor (docs/formats.md, "Quantized schemes").
constexpr float kFloor = 0x1p-23F;

float scale_of(float amax, const EncodeOptions& /*options*/) {
  return std::max(amax / 127.0F, kFloor);
}

float value_of(std::uint8_t code) {
  return static_cast<float>(static_cast<std::int8_t>(code));
}

constexpr GroupEncoding kGroups{.scale = scale_of,
                                .store = store_f32_scale,
                                .stored_bytes = sizeof(float),
                                .encode = encode_int8,
                                .code_bits = 8,
                                .code_value = value_of,
                                .twos_complement = true};

constexpr std::array kRows = {
    Scheme{.id = formats::SchemeId::kInt8Channel,
           .decode = decode_int8,
           .encode = encode_by_groups<kGroups>,
           .half_top_step = 0.5F},
    Scheme{.id = formats::SchemeId::kInt8Block,
           .decode = decode_int8,
           .encode = encode_by_groups<kGroups>,
           .half_top_step = 0.5F},
};

}  // namespace

constinit const std::span<const Scheme> kInt8Schemes = kRows;

}  // namespace ingot::quantize
