// E4M3 codes under F32 scales: one per block, per row or per tensor. One arithmetic, three sizes of
// group; they differ in the floor under the largest magnitude.

#include <algorithm>
#include <array>
#include <bit>

#include "formats/base/error.h"
#include "formats/container/float8.h"
#include "quantize/group_encoder.h"
#include "quantize/kernels/code_decode.h"
#include "quantize/schemes.h"

namespace ingot::quantize {
namespace {

constexpr float kLargest = 448.0F;
/// The floor of the released DeepSeek models, hence of blocks (docs/formats.md, "Quantized
/// schemes").
constexpr float kBlockFloor = 1e-4F;
/// The floor of the others: merely keeps zero groups from a scale of zero.
constexpr float kFloor = 1e-12F;

/// The smallest power of two that is not below a positive scale.
float up_to_power_of_two(float scale) {
  const auto bits = std::bit_cast<std::uint32_t>(scale);
  const std::uint32_t exponent = (bits >> 23) + ((bits & 0x7FFFFFU) != 0 ? 1U : 0U);
  return std::bit_cast<float>(std::clamp<std::uint32_t>(exponent, 1, 254) << 23);
}

float scale_of(float amax, float floor, Fp8Grid grid) {
  const float scale = std::max(amax, floor) / kLargest;
  return grid == Fp8Grid::kUe8m0 ? up_to_power_of_two(scale) : scale;
}

float block_scale(float amax, const EncodeOptions& options) {
  return scale_of(amax, kBlockFloor, options.fp8_grid);
}

float channel_scale(float amax, const EncodeOptions& options) {
  return scale_of(amax, kFloor, options.fp8_grid);
}

float tensor_scale(float amax, const EncodeOptions& options, bool /*divides*/) {
  return channel_scale(amax, options);
}

/// Small groups that a quantized source held exactly: the floor would cut them off.
float scale_below_floor(formats::MatrixView<const float> group, float amax,
                        const EncodeOptions& options) {
  if (options.fp8_grid != Fp8Grid::kUe8m0 || amax >= kBlockFloor) return 0;
  const float scale = up_to_power_of_two(amax / kLargest);
  for (std::size_t r = 0; r < group.rows; ++r) {
    for (std::size_t c = 0; c < group.cols; ++c) {
      const float value = group.row(r)[c];
      if (formats::float_from_e4m3(formats::e4m3_from_float(value / scale)) * scale != value)
        return 0;
    }
  }
  return scale;
}

constexpr GroupEncoding kChannels{.scale = channel_scale,
                                  .store = store_f32_scale,
                                  .stored_bytes = sizeof(float),
                                  .encode = encode_e4m3,
                                  .code_bits = 8,
                                  .code_value = formats::float_from_e4m3,
                                  .exact_scale = scale_below_floor};
constexpr GroupEncoding kBlocks = [] {
  GroupEncoding blocks = kChannels;
  blocks.scale = block_scale;
  return blocks;
}();

EncodeFaults encode_tensor(const EncodeInput& in, const EncodeOutput& out) {
  if (in.values.rows == 0 || in.values.cols == 0) return {};
  INGOT_CHECK(in.global > 0);
  encode_under_scale(in, out, kChannels, in.global);
  return {};
}

constexpr float kHalfTopStep = 16;  // 448 - 416, halved

constexpr std::array kRows = {
    Scheme{.id = formats::SchemeId::kFp8Block,
           .decode = decode_e4m3,
           .encode = encode_by_groups<kBlocks>,
           .half_top_step = kHalfTopStep,
           .takes_scales = true},
    Scheme{.id = formats::SchemeId::kFp8Channel,
           .decode = decode_e4m3,
           .encode = encode_by_groups<kChannels>,
           .half_top_step = kHalfTopStep},
    Scheme{.id = formats::SchemeId::kFp8Tensor,
           .decode = decode_e4m3,
           .encode = encode_tensor,
           .global = tensor_scale,
           .half_top_step = kHalfTopStep},
};

}  // namespace

constinit const std::span<const Scheme> kFp8Schemes = kRows;

}  // namespace ingot::quantize
