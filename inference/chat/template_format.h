#pragma once

#include <filesystem>
#include <memory>

#include "inference/chat/chat_format.h"

namespace ingot::inference {

/// The chat template among a model's files, null when they have none. Templates see what
/// transformers gives them: messages, tools, documents, add_generation_prompt, the special tokens
/// of tokenizer_config.json that are set, and the options.
std::unique_ptr<ChatFormat> open_template_format(const std::filesystem::path& directory);

}  // namespace ingot::inference
