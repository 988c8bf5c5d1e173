#pragma once

#include <cstddef>

namespace ingot::quantize {

/// Casts of `n` contiguous values. No alignment is asked of either side. Each rounds to nearest
/// even; NaN stays NaN, made quiet where bits are lost.

void cast_f32_to_bf16(const std::byte* in, std::size_t n, std::byte* out);
void cast_f16_to_bf16(const std::byte* in, std::size_t n, std::byte* out);
/// Magnitudes from 65520 on become infinite.
void cast_f32_to_f16(const std::byte* in, std::size_t n, std::byte* out);
void cast_bf16_to_f32(const std::byte* in, std::size_t n, std::byte* out);
void cast_f16_to_f32(const std::byte* in, std::size_t n, std::byte* out);

/// Rounds F32 values to BF16, in place.
void round_f32_to_bf16(float* values, std::size_t n);

}  // namespace ingot::quantize
