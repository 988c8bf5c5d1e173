#pragma once

#include <cstddef>

namespace ingot::inference {

/// Longest text in bytes, as given and after every step of the file's normalizer and pre-tokenizer,
/// some of which make texts longer.
inline constexpr std::size_t kMaxTextBytes = std::size_t{64} << 20;

/// Throws kLimit beyond it.
void check_text_size(std::size_t n_bytes);

}  // namespace ingot::inference
