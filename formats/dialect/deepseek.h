#pragma once

#include <span>
#include <string>
#include <string_view>

#include "formats/config/model_config.h"

// Keys and lists of DeepSeek's FP8 config.

namespace ingot::formats {

/// Lists of modules that stay plain: transformers reads the first; vLLM and SGLang the second where
/// it is there.
inline constexpr const char* kModulesToNotConvert = "modules_to_not_convert";
inline constexpr const char* kIgnoredLayers = "ignored_layers";

/// True if such a list, sorted, exempts a weight or a module: by its name or that of one above it,
/// in either spelling.
bool is_exempt(const ModelConfig& config, std::string_view name,
               std::span<const std::string> modules);

/// The keys by which releases in FP8 say that their routed experts are MXFP4, in this word: Ling's,
/// and those of MiMo and Step.
inline constexpr const char* kExpertMethod = "routed_experts_quant_method";
inline constexpr const char* kStoreDtype = "store_dtype";
inline constexpr const char* kMxfp4Word = "mxfp4";
/// True if a config of the dialect says that its routed experts are MXFP4, by either key.
bool says_mxfp4_experts(const ModelConfig& config);

}  // namespace ingot::formats
