// 4-bit integers -8 to 7, stored with 8 added, or 0 to 15 less a zero point, under a BF16 scale per
// group of columns.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "formats/base/error.h"
#include "formats/container/bfloat16.h"
#include "quantize/group_encoder.h"
#include "quantize/kernels/code_encode.h"
#include "quantize/kernels/codes.h"
#include "quantize/kernels/row_scan.h"
#include "quantize/kernels/scales/int4_group.h"
#include "quantize/kernels/scales/int4_moments.h"
#include "quantize/kernels/scales/int4_scales.h"
#include "quantize/kernels/scales/scale_errors.h"
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

/// BF16 numbers that a search of zero points by moments tries below and above the best scale of
/// mse: more than there are between two scales of mse.
constexpr int kNeighbours = 8;

/// The scale that is `steps` BF16 numbers above a positive one.
float neighbour(float scale, int steps) {
  constexpr std::int32_t kLargest = 0x7F7F;
  const std::int32_t bits = formats::bf16_from_float(scale);
  return formats::float_from_bf16(
      static_cast<std::uint16_t>(std::clamp(bits + steps, std::int32_t{1}, kLargest)));
}

/// The range of each group's values and 0.
std::vector<float> ranges_of(formats::MatrixView<const float> values, std::size_t group_cols) {
  std::vector<float> ranges;
  for (std::size_t r = 0; r < values.rows; ++r) {
    for (std::size_t c = 0; c < values.cols; c += group_cols) {
      const auto [low, high] =
          std::minmax_element(values.row(r) + c, values.row(r) + c + group_cols);
      ranges.push_back(std::max(*high, 0.0F) - std::min(*low, 0.0F));
    }
  }
  return ranges;
}

/// Replaces scales without zero points by those with zero points that lose less by moments: what
/// mse chooses together, with the same zero points the other scales that it tries, and the
/// neighbours of the best. On a tie the first wins.
void try_zero_points(const EncodeInput& in, std::size_t group_cols, std::span<float> scales,
                     std::span<std::uint8_t> zeros) {
  const std::size_t n = scales.size(), across = in.values.cols / group_cols;
  std::vector<float> by_mse(n), first(scales.begin(), scales.end()), least(n, INFINITY), tried,
      errors;
  std::vector<std::uint8_t> mse_zeros(n), tried_zeros;
  for (std::size_t r = 0; r < in.values.rows; ++r) {
    choose_int4_scales({.values = in.values.row(r), .n_groups = across, .group_cols = group_cols},
                       std::span(by_mse).subspan(r * across, across),
                       std::span(mse_zeros).subspan(r * across, across));
  }
  const std::vector<float> ranges = ranges_of(in.values, group_cols);
  const auto try_all = [&](std::size_t n_scales, std::span<const std::uint8_t> with,
                           const auto& scale_of) {
    tried.resize(n * n_scales);
    errors.resize(tried.size());
    tried_zeros.resize(tried.size());
    for (std::size_t i = 0; i < tried.size(); ++i) {
      tried[i] = ranges[i % n] == 0 ? 1.0F : scale_of(i % n, i / n);
      tried_zeros[i] = with[i % n];
    }
    hessian_errors(formats::CodeKind::kInt4,
                   {.values = in.values,
                    .block_rows = 1,
                    .block_cols = group_cols,
                    .scales = tried,
                    .zeros = tried_zeros},
                   in.moments, errors);
    for (std::size_t i = 0; i < tried.size(); ++i) {
      const float ratio = tried[i] / first[i % n];
      const float error = errors[i] * (ratio * ratio);
      if (!(error < least[i % n])) continue;
      least[i % n] = error;
      scales[i % n] = tried[i];
      zeros[i % n] = tried_zeros[i];
    }
  };
  const std::vector<std::uint8_t> no_zeros(n, kInt4Zero);
  try_all(1, no_zeros, [&](std::size_t k, std::size_t) { return first[k]; });
  try_all(kInt4Steps + 1, mse_zeros, [&](std::size_t k, std::size_t step) {
    return step == kInt4Steps ? by_mse[k] : stored_int4_scale(ranges[k] / kOfRange.at(step));
  });
  std::vector<float> centres = by_mse;
  for (std::size_t k = 0; k < n; ++k)
    if (zeros[k] == mse_zeros[k]) centres[k] = scales[k];
  try_all(2 * kNeighbours, mse_zeros, [&](std::size_t k, std::size_t i) {
    const int steps = static_cast<int>(i) - kNeighbours;
    return neighbour(centres[k], steps < 0 ? steps : steps + 1);
  });
}

EncodeFaults encode(const EncodeInput& in, const EncodeOutput& out) {
  const formats::MatrixView<const float> values = in.values;
  if (values.rows == 0 || values.cols == 0) return {};
  INGOT_CHECK(in.block_rows == 1 && in.block_cols > 0 && out.scales != nullptr);
  const auto group_cols =
      static_cast<std::size_t>(std::min<std::uint64_t>(in.block_cols, values.cols));
  INGOT_CHECK(values.cols % group_cols == 0 && group_cols % 2 == 0);
  if (in.search() == ScaleSearch::kHessian && in.given_scales.empty()) {
    const std::size_t across = values.cols / group_cols;
    std::vector<float> scales(values.rows * across);
    choose_int4_scales_by_moments(
        {.values = values, .moments = in.moments, .group_cols = group_cols}, scales);
    if (out.zeros != nullptr) {
      std::vector<std::uint8_t> zeros(scales.size(), kInt4Zero);
      try_zero_points(in, group_cols, scales, zeros);
      for (std::size_t i = 0; i < zeros.size(); ++i)
        out.zeros[i / across * out.zero_stride + i % across] = zeros[i];
    }
    EncodeInput given = in;
    given.given_scales = scales;
    return encode(given, out);
  }
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
      std::span<std::uint8_t> zeros;
      if (out.zeros != nullptr) zeros = {out.zeros + r * out.zero_stride + g, n};
      if (in.given_scales.empty()) {
        choose_int4_scales({.values = values.row(r) + col,
                            .n_groups = n,
                            .group_cols = group_cols,
                            .search = in.search(),
                            .weights = weights.empty() ? nullptr : weights.data() + col},
                           scales, zeros);
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
                              .scales = scales,
                              .zeros = zeros};
      std::byte* codes = out.weight + r * out.weight_stride + col / 2;
      encode_codes(formats::CodeKind::kInt4, part, codes, out.weight_stride);
      const bool may_overflow = std::ranges::any_of(
          scales, [](float scale) { return std::isinf(scale * Int4::value(15, 0)); });
      if (may_overflow)
        settle_infinite_codes(part, formats::CodeKind::kInt4, codes, out.weight_stride);
    }
  }
  return {};
}

constexpr std::array kSearches = {ScaleSearch::kAmax, ScaleSearch::kMse, ScaleSearch::kSigned,
                                  ScaleSearch::kHessian};

constexpr std::array kRows = {
    Scheme{.id = formats::SchemeId::kInt4Group,
           .encode = encode,
           .searches = kSearches,
           .takes_scales = true},
};

}  // namespace

constinit const std::span<const Scheme> kInt4Schemes = kRows;

}  // namespace ingot::quantize
