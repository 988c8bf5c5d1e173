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
#include "quantize/kernels/int4_group.h"
#include "quantize/kernels/int4_scales.h"
#include "quantize/kernels/row_scan.h"
#include "quantize/kernels/scale_errors.h"
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

/// BF16 numbers that a search by moments tries below and above the best of those that mse tries:
/// more than there are between two of these.
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

/// The scales of a run that lose least by moments: the best of all that mse tries, then of its
/// neighbours. On a tie the first wins. The fitted scale is the one that mse chose. Where there is
/// room for zero points, the same follows with those that mse chooses, and the scales that it tries
/// with them.
std::vector<float> scales_by_moments(const EncodeInput& in, std::size_t group_cols,
                                     std::span<std::uint8_t> zeros) {
  const std::size_t n = in.values.rows * (in.values.cols / group_cols);
  std::vector<float> amaxes(n), best(n), tried, errors;
  group_amax(in.values, 1, group_cols, amaxes);
  for (std::size_t k = 0; k < n; ++k)
    best[k] = amaxes[k] == 0 ? 1.0F : stored_int4_scale(amaxes[k] / kOfAmax.first);
  const std::vector<float> first = best;
  std::vector<float> by_mse(n);
  std::vector<std::uint8_t> mse_zeros, tried_zeros;
  const std::size_t across = in.values.cols / group_cols;
  const auto choose_by_mse = [&] {
    for (std::size_t r = 0; r < in.values.rows; ++r) {
      std::span<std::uint8_t> row_zeros = mse_zeros;
      if (!mse_zeros.empty()) row_zeros = row_zeros.subspan(r * across, across);
      choose_int4_scales({.values = in.values.row(r), .n_groups = across, .group_cols = group_cols},
                         std::span(by_mse).subspan(r * across, across), row_zeros);
    }
  };
  std::vector<float> least(n, INFINITY);
  const auto try_all = [&](std::size_t n_scales, const auto& scale_of) {
    tried.resize(n * n_scales);
    errors.resize(tried.size());
    tried_zeros.resize(mse_zeros.empty() ? 0 : tried.size());
    for (std::size_t i = 0; i < tried.size(); ++i)
      tried[i] = amaxes[i % n] == 0 ? 1.0F : scale_of(i % n, i / n);
    for (std::size_t i = 0; i < tried_zeros.size(); ++i) tried_zeros[i] = mse_zeros[i % n];
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
      best[i % n] = tried[i];
      if (!zeros.empty()) zeros[i % n] = mse_zeros.empty() ? kInt4Zero : mse_zeros[i % n];
    }
  };
  std::vector<float> centres;
  const auto try_neighbours = [&] {
    try_all(2 * kNeighbours, [&](std::size_t k, std::size_t i) {
      const int steps = static_cast<int>(i) - kNeighbours;
      return neighbour(centres[k], steps < 0 ? steps : steps + 1);
    });
  };
  choose_by_mse();
  try_all(kInt4Steps + 1, [&](std::size_t k, std::size_t step) {
    if (step == kInt4Steps) return by_mse[k];
    return stored_int4_scale(amaxes[k] / kOfAmax.at(step));
  });
  centres = best;
  try_neighbours();
  if (zeros.empty()) return best;
  mse_zeros.resize(n);
  choose_by_mse();
  const std::vector<float> ranges = ranges_of(in.values, group_cols);
  try_all(kInt4Steps + 1, [&](std::size_t k, std::size_t step) {
    return step == kInt4Steps ? by_mse[k] : stored_int4_scale(ranges[k] / kOfRange.at(step));
  });
  for (std::size_t k = 0; k < n; ++k) centres[k] = zeros[k] == mse_zeros[k] ? best[k] : by_mse[k];
  try_neighbours();
  return best;
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
    std::vector<std::uint8_t> zeros(out.zeros == nullptr ? 0 : values.rows * across, kInt4Zero);
    const std::vector<float> scales = scales_by_moments(in, group_cols, zeros);
    for (std::size_t i = 0; i < zeros.size(); ++i)
      out.zeros[i / across * out.zero_stride + i % across] = zeros[i];
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
