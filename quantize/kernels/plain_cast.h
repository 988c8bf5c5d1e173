#pragma once

#include <cstddef>

namespace ingot::quantize {

/// Casts `n` F32 values to BF16, to nearest even. NaN stays NaN, made quiet. No alignment is asked
/// of either side.
void cast_f32_to_bf16(const std::byte* in, std::size_t n, std::byte* out);

/// Casts `n` F16 values to BF16, to nearest even. NaN stays NaN, made quiet.
void cast_f16_to_bf16(const std::byte* in, std::size_t n, std::byte* out);

}  // namespace ingot::quantize
