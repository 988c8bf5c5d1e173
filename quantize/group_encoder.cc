// Groups are encoded a few at a time, so that their values are still in the second-level cache when
// they are read again: once for the largest magnitude, once for each scale that a search tries,
// once for the codes.

#include "quantize/group_encoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "formats/base/error.h"
#include "quantize/kernels/codes.h"
#include "quantize/kernels/row_scan.h"
#include "quantize/kernels/scales/scale_errors.h"

namespace ingot::quantize {
namespace {

/// Values encoded together (256 KiB), and groups, whichever is less; at least one group.
constexpr std::uint64_t kValuesAtOnce = std::uint64_t{1} << 16;
constexpr std::uint64_t kGroupsAtOnce = 512;

/// Below it, no code under a scale that fits its group comes near the largest F32.
constexpr float kNearlyInfinite = 0x1p127F;

formats::MatrixView<const float> part_of(formats::MatrixView<const float> values, std::size_t row,
                                         std::size_t rows, std::size_t col, std::size_t cols) {
  return {.data = values.row(row) + col, .rows = rows, .cols = cols, .stride = values.stride};
}

/// Groups at work, some of each of some rows of groups, and their numbers, row-major.
struct Part {
  ScaledGroups groups;  ///< groups of the run, without scales
  std::size_t across = 0;
  const float* weights = nullptr;        ///< weights of its columns
  std::span<const MomentBlock> moments;  ///< moments of its columns, if they decide
  std::vector<float> amaxes, scales;

  [[nodiscard]] std::size_t n() const { return scales.size(); }
  [[nodiscard]] ScaledGroups under(std::span<const float> some_scales) const {
    ScaledGroups scaled = groups;
    scaled.scales = some_scales;
    return scaled;
  }
  [[nodiscard]] formats::MatrixView<const float> group(std::size_t k) const {
    const auto block_rows = static_cast<std::size_t>(groups.block_rows);
    const auto block_cols = static_cast<std::size_t>(groups.block_cols);
    const std::size_t row = k / across * block_rows, col = k % across * block_cols;
    return part_of(groups.values, row, std::min(block_rows, groups.values.rows - row), col,
                   std::min(block_cols, groups.values.cols - col));
  }
};

/// Errors of groups whose values are kept, as the kernels see them, are roundings of products and
/// quotients: at most this per value, and so many times that by moments, whose largest is below 4.
constexpr float kRoundings = 0x1p-24F;
constexpr float kMostByMoments = 4 * kMomentBlock;

/// Replaces the scales by amax by the candidates with the least error.
void search_scales(Part& part, const GroupEncoding& encoding, const EncodeOptions& options) {
  // All groups under the first candidate, then under the next.
  const std::size_t n = part.n();
  std::vector<float> scales(encoding.n_candidates * n), errors(scales.size());
  for (std::size_t i = 0; i < scales.size(); ++i)
    scales[i] = encoding.scale(part.amaxes[i % n], i / n, options);
  if (part.moments.empty()) {
    for (std::size_t first = 0; first < scales.size(); first += n) {
      encoding.errors(part.under(std::span(scales).subspan(first, n)), part.weights,
                      std::span(errors).subspan(first, n));
    }
  } else {
    hessian_errors(encoding.code, part.under(scales), part.moments, errors);
  }
  for (std::size_t k = 0; k < n; ++k) {
    const auto group = part.group(k);
    const float roundings = kRoundings * static_cast<float>(group.rows * group.cols) *
                            (part.moments.empty() ? 1 : kMostByMoments);
    float least = errors[k];
    if (least <= roundings && holds(group, scales[k], encoding.code)) continue;
    for (std::size_t i = k + n; i < scales.size(); i += n) {
      const float ratio = scales[i] / scales[k];
      const float error = errors[i] * (ratio * ratio);
      if (!(error < least)) continue;
      least = error;
      part.scales[k] = scales[i];
    }
  }
}

/// Sets the scales of a part from its largest magnitudes.
void choose_scales(const EncodeInput& in, const GroupEncoding& encoding, Part& part) {
  for (std::size_t k = 0; k < part.n(); ++k)
    part.scales[k] = encoding.scale(part.amaxes[k], 0, in.options);
  if (in.search() != ScaleSearch::kAmax && encoding.n_candidates > 1)
    search_scales(part, encoding, in.options);
  if (!in.keeps_values || encoding.exact_scale == nullptr) return;
  for (std::size_t k = 0; k < part.n(); ++k) {
    if (part.amaxes[k] == 0) continue;
    const float exact = encoding.exact_scale(part.group(k), part.amaxes[k], in.options);
    if (exact > 0) part.scales[k] = exact;
  }
}

}  // namespace

bool holds(formats::MatrixView<const float> group, float scale, formats::CodeKind kind) {
  bool are_held = true;
  with_code(kind, [&](auto code) {
    for (std::size_t r = 0; r < group.rows && are_held; ++r) {
      are_held = std::all_of(group.row(r), group.row(r) + group.cols, [&](float value) {
        return code.value(code.nearest(value, value / scale)) * scale == value;
      });
    }
  });
  return are_held;
}

void store_f32_scale(float scale, std::byte* out) {
  std::memcpy(out, &scale, sizeof scale);
}

void group_weights(std::span<const float> importance, std::size_t group, std::span<float> weights) {
  INGOT_CHECK(importance.size() == weights.size());
  for (std::size_t first = 0; first < importance.size(); first += group) {
    const auto columns = importance.subspan(first, std::min(group, importance.size() - first));
    const float largest = *std::max_element(columns.begin(), columns.end());
    for (std::size_t i = 0; i < columns.size(); ++i) {
      INGOT_CHECK(columns[i] >= 0 && std::isfinite(columns[i]));
      weights[first + i] = largest > 0 ? columns[i] / largest : 1.0F;
    }
  }
}

void settle_infinite_codes(const ScaledGroups& in, formats::CodeKind kind, std::byte* codes,
                           std::size_t stride) {
  const bool is_integer = code_facts(kind).is_even();
  with_code(kind, [&](auto code) {
    for_each_group_piece(in.values, in.block_rows, in.block_cols, in.scales.size(),
                         [&](std::size_t r, std::size_t begin, std::size_t end, std::size_t group) {
                           for (std::size_t c = begin; c < end; ++c) {
                             const std::uint8_t old = code_at<code.kBits>(codes + r * stride, c);
                             const float value = code.value(old, in.zero(group));
                             if (!std::isinf(value * in.scales[group])) continue;
                             // The next code towards zero. REQUIRES: there is one of this sign.
                             const int step = is_integer && value < 0 ? 1 : -1;
                             put_code<code.kBits>(codes + r * stride, c,
                                                  static_cast<std::uint8_t>(old + step));
                           }
                         });
  });
}

void encode_groups(const EncodeInput& in, const EncodeOutput& out, const GroupEncoding& encoding) {
  const formats::MatrixView<const float> values = in.values;
  if (values.rows == 0 || values.cols == 0) return;
  INGOT_CHECK(in.block_rows > 0 && in.block_cols > 0 && out.scales != nullptr);
  const auto block_rows =
      static_cast<std::size_t>(std::min<std::uint64_t>(in.block_rows, values.rows));
  const auto block_cols =
      static_cast<std::size_t>(std::min<std::uint64_t>(in.block_cols, values.cols));
  const std::size_t across = (values.cols + block_cols - 1) / block_cols;
  const std::size_t down = (values.rows + block_rows - 1) / block_rows;
  INGOT_CHECK(in.given_scales.empty() || in.given_scales.size() >= across * down);
  const auto at_once = static_cast<std::size_t>(
      std::clamp<std::uint64_t>(kValuesAtOnce / block_rows / block_cols, 1, kGroupsAtOnce));

  INGOT_CHECK(in.importance.empty() || in.importance.size() == values.cols);
  std::vector<float> weights(in.importance.size());
  group_weights(in.importance, block_cols, weights);

  // A search by moments takes as many rows at once as there are.
  const bool by_moments = in.search() == ScaleSearch::kHessian;
  const std::size_t down_at_once = by_moments ? down : 1;

  Part part;
  for (std::size_t i = 0; i < down; i += down_at_once) {
    const std::size_t row = i * block_rows;
    const std::size_t n_rows = std::min(down_at_once * block_rows, values.rows - row);
    for (std::size_t j = 0; j < across; j += at_once) {
      const std::size_t col = j * block_cols;
      part.across = std::min(at_once, across - j);
      const std::size_t n_cols = std::min(part.across * block_cols, values.cols - col);
      part.groups = {.values = part_of(values, row, n_rows, col, n_cols),
                     .block_rows = block_rows,
                     .block_cols = block_cols,
                     .scales = {}};
      part.weights = weights.empty() ? nullptr : weights.data() + col;
      if (by_moments) part.moments = in.moments.subspan(col / kMomentBlock, n_cols / kMomentBlock);
      part.amaxes.resize(part.across * std::min(down_at_once, down - i));
      part.scales.resize(part.amaxes.size());
      group_amax(part.groups.values, block_rows, block_cols, part.amaxes);
      if (in.given_scales.empty()) choose_scales(in, encoding, part);
      for (std::size_t k = 0; k < part.n(); ++k) {
        const std::size_t down_here = i + k / part.across, across_here = j + k % part.across;
        if (!in.given_scales.empty())
          part.scales[k] = in.given_scales[down_here * across + across_here];
        encoding.store(part.scales[k], out.scales + down_here * out.scale_stride +
                                           across_here * encoding.stored_bytes);
      }
      std::byte* codes =
          out.weight + row * out.weight_stride + col * code_facts(encoding.code).bits / 8;
      encode_codes(encoding.code, part.under(part.scales), codes, out.weight_stride);
      if (*std::ranges::max_element(part.amaxes) >= kNearlyInfinite)
        settle_infinite_codes(part.under(part.scales), encoding.code, codes, out.weight_stride);
    }
  }
}

void encode_under_scale(const EncodeInput& in, const EncodeOutput& out,
                        const GroupEncoding& encoding, float scale) {
  if (in.values.rows == 0 || in.values.cols == 0) return;
  const ScaledGroups all{.values = in.values,
                         .block_rows = in.values.rows,
                         .block_cols = in.values.cols,
                         .scales = {&scale, 1}};
  encode_codes(encoding.code, all, out.weight, out.weight_stride);
  if (std::isinf(scale * code_facts(encoding.code).largest))
    settle_infinite_codes(all, encoding.code, out.weight, out.weight_stride);
}

}  // namespace ingot::quantize
