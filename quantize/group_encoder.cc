// Groups are encoded a few at a time, so that their values are still in the second-level cache when
// they are read again: once for the largest magnitude, once for each scale that a search tries,
// once for the codes.

#include "quantize/group_encoder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "formats/base/error.h"
#include "quantize/kernels/codes.h"
#include "quantize/kernels/row_scan.h"

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

/// A run of groups at work, and the room for their numbers.
struct Part {
  ScaledGroups groups;  ///< groups of the run, without scales
  std::size_t n = 0;
  const float* weights = nullptr;  ///< weights of its columns
  std::array<float, kGroupsAtOnce> amaxes, scales;

  [[nodiscard]] ScaledGroups under(std::span<const float> some_scales) const {
    ScaledGroups scaled = groups;
    scaled.scales = some_scales;
    return scaled;
  }
  [[nodiscard]] formats::MatrixView<const float> group(std::size_t k) const {
    const std::size_t col = k * static_cast<std::size_t>(groups.block_cols);
    const std::size_t cols =
        std::min(static_cast<std::size_t>(groups.block_cols), groups.values.cols - col);
    return part_of(groups.values, 0, groups.values.rows, col, cols);
  }
};

/// Errors of groups whose values are kept, as the kernels see them, are roundings of products and
/// quotients: at most this per value.
constexpr float kRoundings = 0x1p-24F;

/// Replaces the scales by amax by the candidates with the least error.
void search_scales(Part& part, const GroupEncoding& encoding, const EncodeOptions& options) {
  std::array<float, kGroupsAtOnce> first, tried, least, errors;
  const auto some = [&part](std::array<float, kGroupsAtOnce>& of) {
    return std::span(of).first(part.n);
  };
  std::copy_n(part.scales.begin(), part.n, first.begin());
  encoding.errors(part.under(some(first)), part.weights, some(least));
  for (std::size_t k = 0; k < part.n; ++k) {
    const auto group = part.group(k);
    const auto n_values = static_cast<float>(group.rows * group.cols);
    if (least[k] <= kRoundings * n_values && holds(group, first[k], encoding.code)) least[k] = 0;
  }
  for (std::size_t candidate = 1; candidate < encoding.n_candidates; ++candidate) {
    for (std::size_t k = 0; k < part.n; ++k)
      tried[k] = encoding.scale(part.amaxes[k], candidate, options);
    encoding.errors(part.under(some(tried)), part.weights, some(errors));
    for (std::size_t k = 0; k < part.n; ++k) {
      const float ratio = tried[k] / first[k];
      const float error = errors[k] * (ratio * ratio);
      if (!(error < least[k])) continue;
      least[k] = error;
      part.scales[k] = tried[k];
    }
  }
}

/// Sets the scales of a part from its largest magnitudes.
void choose_scales(const EncodeInput& in, const GroupEncoding& encoding, Part& part) {
  for (std::size_t k = 0; k < part.n; ++k)
    part.scales[k] = encoding.scale(part.amaxes[k], 0, in.options);
  if (in.options.search != ScaleSearch::kAmax && encoding.n_candidates > 1)
    search_scales(part, encoding, in.options);
  if (!in.keeps_values || encoding.exact_scale == nullptr) return;
  for (std::size_t k = 0; k < part.n; ++k) {
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
                             const float value = code.value(old);
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

  Part part;
  for (std::size_t i = 0; i < down; ++i) {
    const std::size_t row = i * block_rows;
    const std::size_t n_rows = std::min(block_rows, values.rows - row);
    for (std::size_t j = 0; j < across; j += at_once) {
      const std::size_t col = j * block_cols;
      part.n = std::min(at_once, across - j);
      part.groups = {.values = part_of(values, row, n_rows, col,
                                       std::min(part.n * block_cols, values.cols - col)),
                     .block_rows = block_rows,
                     .block_cols = block_cols,
                     .scales = {}};
      part.weights = weights.empty() ? nullptr : weights.data() + col;
      const auto amaxes = std::span(part.amaxes).first(part.n);
      const auto scales = std::span(part.scales).first(part.n);
      group_amax(part.groups.values, block_rows, block_cols, amaxes);
      if (in.given_scales.empty()) {
        choose_scales(in, encoding, part);
      } else {
        std::ranges::copy(in.given_scales.subspan(i * across + j, part.n), scales.begin());
      }
      for (std::size_t k = 0; k < part.n; ++k)
        encoding.store(scales[k],
                       out.scales + i * out.scale_stride + (j + k) * encoding.stored_bytes);
      std::byte* codes =
          out.weight + row * out.weight_stride + col * code_facts(encoding.code).bits / 8;
      encode_codes(encoding.code, part.under(scales), codes, out.weight_stride);
      if (*std::ranges::max_element(amaxes) >= kNearlyInfinite)
        settle_infinite_codes(part.under(scales), encoding.code, codes, out.weight_stride);
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
