#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "formats/container/bfloat16.h"
#include "quantize/coded_matrix.h"

namespace ingot::quantize {

/// Columns that a vector decoder makes at a time (lanes-inl.h).
inline constexpr std::size_t kDotLanes = 16;

/// The rounding of decoded weights before they are multiplied.
enum class WeightRounding : bool { kExact, kBf16 };

inline float rounded_weight(float value, WeightRounding rounding) {
  return rounding == WeightRounding::kExact
             ? value
             : formats::float_from_bf16(formats::bf16_from_float(value));
}

/// The one NaN that products have, whichever NaN this processor's arithmetic made or passed on.
inline float one_nan(float value) {
  return std::isnan(value) ? std::bit_cast<float>(0x7FC00000U) : value;
}

/// True if all columns of a matrix share one scale, or one scale per row.
inline bool is_one_group(const CodedMatrix& w) {
  return w.first_col + w.cols <= w.block_cols;
}

/// True if groups of columns are a power of two from sixteen on, or a row, and the run begins at a
/// multiple of sixteen.
inline bool has_groups_of_power(const CodedMatrix& w) {
  const bool is_power = std::has_single_bit(w.block_cols) && w.block_cols >= kDotLanes;
  return w.group_order.empty() && w.first_col % kDotLanes == 0 && (is_power || is_one_group(w));
}

/// True if vectors of sixteen columns, counted from the run's first, never straddle two scale
/// groups, E2M1 codes have groups of 16 or 32 columns with scales held as codes, and INT4 codes
/// groups of a power of two or of a row.
inline bool has_regular_groups(const CodedMatrix& w) {
  if (w.block_cols == 0) return true;
  const formats::CodeKind kind = formats::scheme_facts(w.scheme).code;
  if (kind == formats::CodeKind::kE2m1) {
    return w.scale_codes != nullptr && (w.block_cols == 16 || w.block_cols == 32) &&
           w.first_col % w.block_cols == 0;
  }
  if (kind == formats::CodeKind::kInt4) return has_groups_of_power(w);
  return (w.block_cols % kDotLanes == 0 && w.first_col % kDotLanes == 0) || is_one_group(w);
}

/// The decoders that a matrix can need, by families that are compiled apart.
enum class DecoderFamily : std::uint8_t {
  kPlain,    ///< BF16, F16 and F32, and what has no regular groups
  kBytes,    ///< FP8 and INT8
  kNibbles,  ///< FP4 and INT4
};

inline DecoderFamily decoder_family(const CodedMatrix& w) {
  if (!formats::is_quantized(w.scheme) || !has_regular_groups(w)) return DecoderFamily::kPlain;
  return formats::scheme_facts(w.scheme).code_bits == 4 ? DecoderFamily::kNibbles
                                                        : DecoderFamily::kBytes;
}

}  // namespace ingot::quantize
