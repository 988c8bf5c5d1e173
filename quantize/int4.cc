// 4-bit integers -8 to 7, stored with 8 added, under a BF16 scale per group of columns.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "formats/base/error.h"
#include "formats/container/bfloat16.h"
#include "quantize/group_encoder.h"
#include "quantize/kernels/code_encode.h"
#include "quantize/kernels/codes.h"
#include "quantize/kernels/int4_scales.h"
#include "quantize/schemes.h"

namespace ingot::quantize {
namespace {

constexpr std::size_t kGroupsAtOnce = 512;

constexpr std::size_t kScaleBytes = 2;

void store_scales(std::span<const float> scales, std::byte* out) {
  for (const float scale : scales) {
    const std::uint16_t bits = formats::bf16_from_float(scale);
    INGOT_CHECK(formats::float_from_bf16(bits) == scale && scale != 0);
    std::memcpy(out, &bits, sizeof bits);
    out += sizeof bits;
  }
}

EncodeFaults encode(const EncodeInput& in, const EncodeOutput& out) {
  const formats::MatrixView<const float> values = in.values;
  if (values.rows == 0 || values.cols == 0) return {};
  INGOT_CHECK(in.block_rows == 1 && in.block_cols > 0 && out.scales != nullptr);
  const auto group_cols =
      static_cast<std::size_t>(std::min<std::uint64_t>(in.block_cols, values.cols));
  INGOT_CHECK(values.cols % group_cols == 0 && group_cols % 2 == 0);
  const std::size_t across = values.cols / group_cols;
  INGOT_CHECK(in.given_scales.empty() || in.given_scales.size() >= across * values.rows);
  INGOT_CHECK(in.importance.empty() || in.importance.size() == values.cols);
  std::vector<float> weights(in.importance.size());
  group_weights(in.importance, group_cols, weights);

  std::array<float, kGroupsAtOnce> chosen;
  for (std::size_t r = 0; r < values.rows; ++r) {
    for (std::size_t g = 0; g < across; g += kGroupsAtOnce) {
      const std::size_t n = std::min(kGroupsAtOnce, across - g), col = g * group_cols;
      const auto scales = std::span(chosen).first(n);
      if (in.given_scales.empty()) {
        choose_int4_scales({.values = values.row(r) + col,
                            .n_groups = n,
                            .group_cols = group_cols,
                            .search = in.options.search,
                            .weights = weights.empty() ? nullptr : weights.data() + col},
                           scales);
      } else {
        std::ranges::copy(in.given_scales.subspan(r * across + g, n), scales.begin());
      }
      store_scales(scales, out.scales + r * out.scale_stride + g * kScaleBytes);
      const ScaledGroups part{.values = {.data = values.row(r) + col,
                                         .rows = 1,
                                         .cols = n * group_cols,
                                         .stride = n * group_cols},
                              .block_rows = 1,
                              .block_cols = group_cols,
                              .scales = scales};
      std::byte* codes = out.weight + r * out.weight_stride + col / 2;
      encode_codes(formats::CodeKind::kInt4, part, codes, out.weight_stride);
      const bool may_overflow = std::ranges::any_of(
          scales, [](float scale) { return std::isinf(scale * Int4::value(0)); });
      if (may_overflow)
        settle_infinite_codes(part, formats::CodeKind::kInt4, codes, out.weight_stride);
    }
  }
  return {};
}

constexpr std::array kSearches = {ScaleSearch::kAmax, ScaleSearch::kMse, ScaleSearch::kSigned};

constexpr std::array kRows = {
    Scheme{.id = formats::SchemeId::kInt4Group,
           .encode = encode,
           .searches = kSearches,
           .takes_scales = true},
};

}  // namespace

constinit const std::span<const Scheme> kInt4Schemes = kRows;

}  // namespace ingot::quantize
