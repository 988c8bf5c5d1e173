// E4M3 codes under F32 scales: one per block, per row or per tensor. One arithmetic, three sizes of
// group; they differ in the floor under the largest magnitude.

#include <algorithm>
#include <array>
#include <bit>

#include "formats/base/error.h"
#include "quantize/group_encoder.h"
#include "quantize/kernels/scales/scale_errors.h"
#include "quantize/schemes.h"

namespace ingot::quantize {
namespace {

constexpr float kLargest = 448.0F;
/// The code that the largest magnitude becomes: those of one octave. So a group whose values are
/// codes times some number finds that number, up to a power of two.
constexpr std::array kTops = {kLargest, 416.0F, 384.0F, 352.0F, 320.0F, 288.0F, 256.0F, 240.0F};
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

float scale_of(float amax, float floor, std::size_t candidate, Fp8Grid grid) {
  const float scale = std::max(amax, floor) / kTops.at(candidate);
  return grid == Fp8Grid::kUe8m0 ? up_to_power_of_two(scale) : scale;
}

float block_scale(float amax, std::size_t candidate, const EncodeOptions& options) {
  return scale_of(amax, kBlockFloor, candidate, options.fp8_grid);
}

float channel_scale(float amax, std::size_t candidate, const EncodeOptions& options) {
  return scale_of(amax, kFloor, candidate, options.fp8_grid);
}

float tensor_scale(float amax, const EncodeOptions& options, bool /*divides*/) {
  return channel_scale(amax, 0, options);
}

/// Small groups that a quantized source held exactly: the floor would cut them off.
float scale_below_floor(formats::MatrixView<const float> group, float amax,
                        const EncodeOptions& options) {
  if (options.fp8_grid != Fp8Grid::kUe8m0 || amax >= kBlockFloor) return 0;
  const float scale = up_to_power_of_two(amax / kLargest);
  return holds(group, scale, formats::CodeKind::kE4m3) ? scale : 0;
}

constexpr GroupEncoding kChannels{.scale = channel_scale,
                                  .store = store_f32_scale,
                                  .stored_bytes = sizeof(float),
                                  .code = formats::CodeKind::kE4m3,
                                  .exact_scale = scale_below_floor,
                                  .n_candidates = kTops.size(),
                                  .errors = e4m3_errors};
constexpr GroupEncoding kBlocks = [] {
  GroupEncoding blocks = kChannels;
  blocks.scale = block_scale;
  return blocks;
}();

template <const GroupEncoding& Encoding>
EncodeFaults encode(const EncodeInput& in, const EncodeOutput& out) {
  EncodeInput taken = in;
  if (in.options.fp8_grid == Fp8Grid::kUe8m0) taken.options.search = ScaleSearch::kAmax;
  return encode_by_groups<Encoding>(taken, out);
}

EncodeFaults encode_tensor(const EncodeInput& in, const EncodeOutput& out) {
  if (in.values.rows == 0 || in.values.cols == 0) return {};
  INGOT_CHECK(in.global > 0);
  encode_under_scale(in, out, kChannels, in.global);
  return {};
}

constexpr std::array kSearches = {ScaleSearch::kAmax, ScaleSearch::kMse, ScaleSearch::kHessian};

constexpr std::array kRows = {
    Scheme{.id = formats::SchemeId::kFp8Block,
           .encode = encode<kBlocks>,
           .searches = kSearches,
           .takes_scales = true,
           .takes_fp8_grid = true},
    Scheme{.id = formats::SchemeId::kFp8Channel,
           .encode = encode<kChannels>,
           .searches = kSearches,
           .takes_fp8_grid = true},
    Scheme{.id = formats::SchemeId::kFp8Tensor,
           .encode = encode_tensor,
           .global = tensor_scale,
           .takes_fp8_grid = true},
};

}  // namespace

constinit const std::span<const Scheme> kFp8Schemes = kRows;

}  // namespace ingot::quantize
