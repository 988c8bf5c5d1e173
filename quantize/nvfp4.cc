// E2M1 codes under an E4M3 scale per 16 columns and one F32 scale over all of them.

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <vector>

#include "formats/base/error.h"
#include "formats/container/float8.h"
#include "quantize/group_encoder.h"
#include "quantize/kernels/code_encode.h"
#include "quantize/kernels/scales/nvfp4_scales.h"
#include "quantize/kernels/scales/scale_errors.h"
#include "quantize/schemes.h"

namespace ingot::quantize {
namespace {

/// Largest code x largest block scale. A search needs room above the scale of the largest block, so
/// it takes 256 in place of 448; on normal data that costs nothing.
constexpr float kTopOfAmax = 6.0F * 448.0F;
constexpr float kTopOfSearch = 6.0F * 256.0F;

float global_scale(float amax, const EncodeOptions& options, bool divides) {
  const float top = options.search == ScaleSearch::kAmax ? kTopOfAmax : kTopOfSearch;
  const float scale = divides ? top / amax : amax / top;
  return std::isfinite(scale) && scale > 0 ? scale : 1.0F;
}

/// The largest value of a block is at least 4 under scales that a search by moments tries.
constexpr float kLeastReach = 3.51F;

/// The scales of a run that lose least by moments.
struct ByMoments {
  explicit ByMoments(const EncodeInput& in, Nvfp4Blocks blocks)
      : across(in.values.cols / kNvfp4Block), codes(across * in.values.rows) {
    for (std::size_t code = 0; code < effective.size(); ++code) {
      effective[code] =
          nvfp4_effective_scale(static_cast<std::uint8_t>(code), in.global, in.global_divides);
    }
    blocks.search = ScaleSearch::kAmax;
    blocks.n_blocks = across;
    std::vector<float> unused(across);
    for (std::size_t r = 0; r < in.values.rows; ++r) {
      blocks.values = in.values.row(r);
      choose_nvfp4_scales(blocks, codes.data() + r * across, unused.data());
    }
    choose_hessian_codes({.values = in.values,
                          .moments = in.moments,
                          .group_cols = kNvfp4Block,
                          .scales = effective,
                          .least_reach = kLeastReach},
                         codes);
  }
  /// Gives the scales of blocks in a row as choose_nvfp4_scales() does.
  void give(std::size_t row, std::size_t block, std::size_t n, std::uint8_t* out,
            float* scales) const {
    const std::uint8_t* from = codes.data() + row * across + block;
    std::copy_n(from, n, out);
    std::transform(from, from + n, scales, [&](std::uint8_t code) { return effective[code]; });
  }

  std::size_t across;
  std::vector<std::uint8_t> codes;
  std::array<float, formats::kE4m3Largest + 1> effective;
};

/// Blocks encoded together: 16 KiB of values.
constexpr std::size_t kBlocksAtOnce = 256;

EncodeFaults encode(const EncodeInput& in, const EncodeOutput& out) {
  const formats::MatrixView<const float> values = in.values;
  if (values.rows == 0 || values.cols == 0) return {};
  INGOT_CHECK(in.block_rows == 1 && in.block_cols == kNvfp4Block);
  INGOT_CHECK(values.cols % kNvfp4Block == 0 && out.scales != nullptr);
  INGOT_CHECK(in.global > 0 && std::isfinite(in.global) && in.given_scales.empty());
  const EncodeOptions::Window window = in.options.window;
  INGOT_CHECK(window.below >= 0 && window.above >= 0 && window.above_small >= 0);
  INGOT_CHECK(window.below <= 126 && window.above <= 126 && window.above_small <= 126);

  Nvfp4Blocks blocks{.global = in.global,
                     .divides = in.global_divides,
                     .lowest_code = nvfp4_lowest_code(in.global, in.global_divides),
                     .search = in.search(),
                     .window = window};
  INGOT_CHECK(in.importance.empty() || in.importance.size() == values.cols);
  std::vector<float> weights(in.importance.size());
  group_weights(in.importance, kNvfp4Block, weights);
  std::optional<ByMoments> by_moments;
  if (blocks.search == ScaleSearch::kHessian) by_moments.emplace(in, blocks);
  std::array<float, kBlocksAtOnce> scales;
  for (std::size_t r = 0; r < values.rows; ++r) {
    for (std::size_t c = 0; c < values.cols; c += kBlocksAtOnce * kNvfp4Block) {
      const std::size_t n = std::min(values.cols - c, kBlocksAtOnce * kNvfp4Block);
      blocks.values = values.row(r) + c;
      blocks.n_blocks = n / kNvfp4Block;
      if (!weights.empty()) blocks.weights = weights.data() + c;
      auto* codes =
          reinterpret_cast<std::uint8_t*>(out.scales + r * out.scale_stride + c / kNvfp4Block);
      if (by_moments) {
        by_moments->give(r, c / kNvfp4Block, blocks.n_blocks, codes, scales.data());
      } else {
        choose_nvfp4_scales(blocks, codes, scales.data());
      }
      const ScaledGroups part{.values = {.data = blocks.values, .rows = 1, .cols = n, .stride = n},
                              .block_rows = 1,
                              .block_cols = kNvfp4Block,
                              .scales = std::span(scales).first(blocks.n_blocks)};
      std::byte* weight = out.weight + r * out.weight_stride + c / 2;
      encode_codes(formats::CodeKind::kE2m1, part, weight, out.weight_stride);
      const float largest = *std::max_element(part.scales.begin(), part.scales.end());
      if (std::isinf(6.0F * largest))
        settle_infinite_codes(part, formats::CodeKind::kE2m1, weight, out.weight_stride);
    }
  }
  return {};
}

constexpr std::array kSearches = {ScaleSearch::kAmax, ScaleSearch::kFourOverSix, ScaleSearch::kMse,
                                  ScaleSearch::kHessian};

constexpr std::array kRows = {
    Scheme{.id = formats::SchemeId::kNvfp4,
           .encode = encode,
           .global = global_scale,
           .searches = kSearches},
};

}  // namespace

constinit const std::span<const Scheme> kNvfp4Schemes = kRows;

}  // namespace ingot::quantize
