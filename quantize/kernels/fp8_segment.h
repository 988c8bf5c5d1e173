#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "formats/container/bfloat16.h"
#include "quantize/kernels/scaled_code.h"

namespace ingot::quantize {

/// Casts `n` E4M3 codes that share a scale to BF16 words.
inline void cast_segment(const std::byte* codes, std::size_t n, float scale, std::byte* out) {
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint16_t word =
        formats::bf16_from_float(scaled_e4m3(std::to_integer<std::uint8_t>(codes[i]), scale));
    std::memcpy(out + 2 * i, &word, sizeof word);
  }
}

}  // namespace ingot::quantize
