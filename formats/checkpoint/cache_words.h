#pragma once

#include <string>

#include "formats/checkpoint/checkpoint.h"
#include "formats/config/config_meaning.h"
#include "formats/config/nested_config.h"

namespace ingot::formats {

/// The words of a checkpoint's config.json or description file about a quantized cache of keys and
/// values; empty if there are none.
inline std::string cache_words(const Checkpoint& checkpoint) {
  std::string words = cache_words(quantization_block(checkpoint.config()));
  return words.empty() ? cache_words(checkpoint.description()) : words;
}

}  // namespace ingot::formats
