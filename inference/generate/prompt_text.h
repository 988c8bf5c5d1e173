#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "inference/tokenizer/tokenizer.h"

namespace ingot::inference {

/// The token with which a raw text begins: bos_token of tokenizer_config.json where add_bos_token
/// asks for it. A tokenizer may have a post-processor that does the same by itself.
std::optional<std::int32_t> bos_before_text(const std::filesystem::path& directory,
                                            const Tokenizer& tokenizer);

/// Text as it stands, with what the post-processor puts around it, and with `bos` in front unless
/// it is there. Throws what Tokenizer::encode throws.
std::vector<std::int32_t> encode_raw_text(const Tokenizer& tokenizer,
                                          std::optional<std::int32_t> bos, std::string_view text);

/// Texts between blank lines, without the line end after each.
std::vector<std::string> split_prompts(std::string_view text);

}  // namespace ingot::inference
