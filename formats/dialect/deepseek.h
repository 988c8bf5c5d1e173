#pragma once

// The lists of modules in DeepSeek's FP8 config that stay plain.

namespace ingot::formats {

/// transformers reads the first; vLLM and SGLang the second where it is there.
inline constexpr const char* kModulesToNotConvert = "modules_to_not_convert";
inline constexpr const char* kIgnoredLayers = "ignored_layers";

}  // namespace ingot::formats
