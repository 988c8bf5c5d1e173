// Groups are encoded a few at a time, so that their values are still in the second-level cache when
// they are read for the second time: once for the largest magnitude, once for the codes.

#include "quantize/group_encoder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "formats/base/error.h"
#include "formats/container/float8.h"
#include "quantize/kernels/block_grid.h"
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

}  // namespace

void store_f32_scale(float scale, std::byte* out) {
  std::memcpy(out, &scale, sizeof scale);
}

void group_weights(std::span<const float> importance, std::size_t group, std::span<float> weights) {
  INGOT_CHECK(importance.size() == weights.size() && importance.size() % group == 0);
  for (std::size_t first = 0; first < importance.size(); first += group) {
    const auto columns = importance.subspan(first, group);
    const float largest = *std::max_element(columns.begin(), columns.end());
    for (std::size_t i = 0; i < group; ++i) {
      INGOT_CHECK(columns[i] >= 0 && std::isfinite(columns[i]));
      weights[first + i] = largest > 0 ? columns[i] / largest : 1.0F;
    }
  }
}

void settle_infinite_codes(const ScaledGroups& in, const GroupEncoding& encoding, std::byte* codes,
                           std::size_t stride) {
  const std::size_t per_byte = 8 / encoding.code_bits;
  const auto mask = static_cast<std::uint8_t>((1U << encoding.code_bits) - 1);
  for_each_group_piece(
      in.values, in.block_rows, in.block_cols, in.scales.size(),
      [&](std::size_t r, std::size_t begin, std::size_t end, std::size_t group) {
        for (std::size_t c = begin; c < end; ++c) {
          std::byte& byte = codes[r * stride + c / per_byte];
          const auto shift = static_cast<unsigned>(c % per_byte * encoding.code_bits);
          const auto code =
              static_cast<std::uint8_t>(std::to_integer<unsigned>(byte) >> shift & mask);
          const float value = encoding.code_value(code);
          if (!std::isinf(value * in.scales[group])) continue;
          // One step towards zero. The code is not the last of its sign, so that neither the sign
          // nor the neighbour in the byte is touched.
          const unsigned old = std::to_integer<unsigned>(byte);
          const unsigned step = 1U << shift;
          byte = static_cast<std::byte>(encoding.twos_complement && value < 0 ? old + step
                                                                              : old - step);
        }
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

  std::array<float, kGroupsAtOnce> amaxes;
  std::array<float, kGroupsAtOnce> scales;
  for (std::size_t i = 0; i < down; ++i) {
    const std::size_t row = i * block_rows;
    const std::size_t n_rows = std::min(block_rows, values.rows - row);
    for (std::size_t j = 0; j < across; j += at_once) {
      const std::size_t n = std::min(at_once, across - j);
      const std::size_t col = j * block_cols;
      const std::size_t n_cols = std::min(n * block_cols, values.cols - col);
      const ScaledGroups part{.values = part_of(values, row, n_rows, col, n_cols),
                              .block_rows = block_rows,
                              .block_cols = block_cols,
                              .scales = std::span(scales).first(n)};
      group_amax(part.values, block_rows, block_cols, std::span(amaxes).first(n));
      for (std::size_t k = 0; k < n; ++k) {
        scales[k] = in.given_scales.empty() ? encoding.scale(amaxes[k], in.options)
                                            : in.given_scales[i * across + j + k];
        if (in.given_scales.empty() && in.keeps_values && amaxes[k] > 0 && encoding.exact_scale) {
          const std::size_t first = k * block_cols;
          const float exact = encoding.exact_scale(
              part_of(part.values, 0, n_rows, first, std::min(block_cols, n_cols - first)),
              amaxes[k], in.options);
          if (exact > 0) scales[k] = exact;
        }
        encoding.store(scales[k],
                       out.scales + i * out.scale_stride + (j + k) * encoding.stored_bytes);
      }
      std::byte* codes = out.weight + row * out.weight_stride + col * encoding.code_bits / 8;
      encoding.encode(part, codes, out.weight_stride);
      if (*std::max_element(amaxes.begin(), amaxes.begin() + static_cast<std::ptrdiff_t>(n)) >=
          kNearlyInfinite) {
        settle_infinite_codes(part, encoding, codes, out.weight_stride);
      }
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
  encoding.encode(all, out.weight, out.weight_stride);
  if (std::isinf(scale * encoding.code_value(formats::kE4m3Largest))) {
    settle_infinite_codes(all, encoding, out.weight, out.weight_stride);
  }
}

}  // namespace ingot::quantize
