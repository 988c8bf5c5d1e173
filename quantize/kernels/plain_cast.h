#pragma once

#include <cstddef>
#include <cstdint>

namespace ingot::quantize {

/// Types between which words are cast. Each rounds to nearest even; NaN stays NaN, made quiet where
/// bits are lost.
enum class WordCast : std::uint8_t {
  kF32ToBf16,
  kF16ToBf16,
  kF32ToF16,  ///< magnitudes from 65520 on become infinite
  kBf16ToF32,
  kF16ToF32,
  kF32ToF32,  ///< a copy
};

/// Casts `n` contiguous values. Neither side needs an alignment.
void cast_words(WordCast cast, const std::byte* in, std::size_t n, std::byte* out);

/// Rounds F32 values to BF16, in place.
void round_f32_to_bf16(float* values, std::size_t n);

}  // namespace ingot::quantize
