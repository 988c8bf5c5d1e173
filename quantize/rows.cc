#include "quantize/rows.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "formats/base/error.h"
#include "quantize/kernels/plain_cast.h"
#include "quantize/kernels/row_scan.h"

namespace ingot::quantize {
namespace {

constexpr std::uint32_t kInfinityBits = 0x7F800000U;

bool is_nonfinite(float value) {
  return (std::bit_cast<std::uint32_t>(value) & kInfinityBits) == kInfinityBits;
}

/// Values that the general path decodes at once.
constexpr std::size_t kValuesAtOnce = 2048;

/// Finds the largest magnitude by decoding pieces of rows that begin where a group begins, as the
/// schemes ask.
float decoded_amax(const CodedMatrix& in) {
  const std::size_t step =
      in.block_cols == 0 || in.block_cols >= kValuesAtOnce
          ? kValuesAtOnce
          : kValuesAtOnce - kValuesAtOnce % static_cast<std::size_t>(in.block_cols);
  std::array<float, kValuesAtOnce> values;
  float largest = 0;
  for (std::size_t r = 0; r < in.rows; ++r) {
    for (std::size_t c = 0; c < in.cols; c += step) {
      const std::size_t n = std::min(step, in.cols - c);
      decode(in.part(r, 1, c, n), {.data = values.data(), .rows = 1, .cols = n, .stride = step});
      largest = std::max(largest, finite_amax(values.data(), n));
    }
  }
  return largest;
}

}  // namespace

float amax(formats::MatrixView<const float> values) {
  float largest = 0;
  for (std::size_t r = 0; r < values.rows; ++r) {
    largest = std::max(largest, finite_amax(values.row(r), values.cols));
  }
  return largest;
}

float encoded_amax(const CodedMatrix& in) {
  float largest = 0;
  const bool is_e4m3 = formats::scheme_facts(in.scheme).code == formats::CodeKind::kE4m3;
  return is_e4m3 && e4m3_amax(in, largest) ? largest : decoded_amax(in);
}

std::optional<std::uint64_t> first_nonfinite(formats::MatrixView<const float> values) {
  for (std::size_t r = 0; r < values.rows; ++r) {
    const float* row = values.row(r);
    if (!has_nonfinite(row, values.cols)) continue;
    for (std::size_t c = 0; c < values.cols; ++c) {
      if (is_nonfinite(row[c])) return std::uint64_t{r} * values.cols + c;
    }
  }
  return std::nullopt;
}

void settle_nonfinite(formats::MatrixView<float> values, std::uint64_t block_rows,
                      std::uint64_t block_cols) {
  if (values.rows == 0 || values.cols == 0) return;
  const auto side = [](std::uint64_t block, std::size_t whole) {
    return block == 0 || block > whole ? whole : static_cast<std::size_t>(block);
  };
  const std::size_t rows = side(block_rows, values.rows);
  const std::size_t cols = side(block_cols, values.cols);
  for (std::size_t r = 0; r < values.rows; r += rows) {
    for (std::size_t c = 0; c < values.cols; c += cols) {
      const formats::MatrixView<float> group = {.data = values.row(r) + c,
                                                .rows = std::min(rows, values.rows - r),
                                                .cols = std::min(cols, values.cols - c),
                                                .stride = values.stride};
      settle_nonfinite(group, amax(group));
    }
  }
}

void settle_nonfinite(formats::MatrixView<float> values, float amax) {
  for (std::size_t r = 0; r < values.rows; ++r) {
    for (std::size_t c = 0; c < values.cols; ++c) {
      float& value = values.row(r)[c];
      if (!is_nonfinite(value)) continue;
      value = std::isnan(value) ? 0.0F : std::copysign(amax, value);
    }
  }
}

void round_to_bf16(formats::MatrixView<float> values) {
  for (std::size_t r = 0; r < values.rows; ++r) round_f32_to_bf16(values.row(r), values.cols);
}

}  // namespace ingot::quantize
