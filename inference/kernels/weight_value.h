#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "formats/base/error.h"
#include "formats/container/bfloat16.h"
#include "formats/container/float16.h"
#include "inference/kernels/matmul.h"
#include "inference/kernels/weight_matrix.h"
#include "quantize/kernels/e2m1.h"
#include "quantize/kernels/scaled_code.h"

namespace ingot::inference {

/// Number, row-major in the grid, of the scale group of element (row, col).
inline std::size_t scale_group(const WeightMatrix& w, std::size_t row, std::size_t col) {
  const std::size_t at = w.first_col + col;
  return (w.first_row + row) / w.block_rows * w.scale_cols +
         (w.group_order != nullptr ? w.group_order[at] : at / w.block_cols);
}

inline float scale_of_group(const WeightMatrix& w, std::size_t group) {
  return w.scales != nullptr ? w.scales[group] : w.scale_values[w.scale_codes[group]];
}

/// The first column after `col` that may have another scale (or the end of the row).
inline std::size_t scale_group_end(const WeightMatrix& w, std::size_t col) {
  const std::size_t left = w.block_cols - (w.first_col + col) % w.block_cols;
  return left < w.cols - col ? col + left : w.cols;
}

/// The value of element (row, col): the specification of every decoder.
inline float weight_value(const WeightMatrix& w, std::size_t row, std::size_t col) {
  using formats::CodeKind;
  using formats::SchemeId;
  const std::byte* codes = w.codes + row * w.row_bytes;
  const auto scale = [&] { return scale_of_group(w, scale_group(w, row, col)); };
  const auto word = [&] {
    std::uint16_t bits;
    std::memcpy(&bits, codes + 2 * col, sizeof bits);
    return bits;
  };
  const auto byte = [&] { return std::to_integer<std::uint8_t>(codes[col]); };
  switch (w.scheme) {
    case SchemeId::kBf16:
      return formats::float_from_bf16(word());
    case SchemeId::kF16:
      return formats::float_from_f16(word());
    case SchemeId::kF32: {
      float value;
      std::memcpy(&value, codes + 4 * col, sizeof value);
      return value;
    }
    default:
      break;
  }
  switch (formats::scheme_facts(w.scheme).code) {
    case CodeKind::kE4m3:
      return quantize::scaled_e4m3(byte(), scale());
    case CodeKind::kInt8:
      return quantize::scaled_int8(byte(), scale());
    case CodeKind::kE2m1:
      return quantize::scaled_e2m1(quantize::nibble_in_byte(codes[col / 2], col), scale());
    case CodeKind::kInt4: {
      const std::uint8_t zero =
          w.zeros == nullptr ? quantize::kInt4Zero : w.zeros[scale_group(w, row, col)];
      return quantize::scaled_int4(quantize::nibble_in_byte(codes[col / 2], col), zero, scale());
    }
    case CodeKind::kPlain:
      break;
  }
  INGOT_CHECK(false);
  return 0;
}

/// Checks that a matrix can be walked; a matrix that cannot is a bug of the caller.
inline void check_matrix(const WeightMatrix& w) {
  INGOT_CHECK(w.scheme != formats::SchemeId::kRaw);
  if (w.rows == 0 || w.cols == 0) return;
  INGOT_CHECK(w.codes != nullptr);
  if (!formats::scheme_facts(w.scheme).quantized) return;
  INGOT_CHECK(w.block_rows > 0 && w.block_cols > 0);
  INGOT_CHECK(w.scales != nullptr || (w.scale_codes != nullptr && w.scale_values != nullptr));
  INGOT_CHECK((w.first_col + w.cols - 1) / w.block_cols < w.scale_cols);
}

inline float rounded_weight(float value, WeightRounding rounding) {
  return rounding == WeightRounding::kExact
             ? value
             : formats::float_from_bf16(formats::bf16_from_float(value));
}

}  // namespace ingot::inference
