#pragma once

#include <algorithm>
#include <array>
#include <string_view>

// Files next to config.json that engines, tokenizers and transformers look for by name, and obey.

namespace ingot::formats {

/// A file that is read by name.
struct ReadFile {
  std::string_view name;
  bool is_of_text = true;  ///< says how text becomes tokens, and chats text
};

inline constexpr std::array kReadFiles = {ReadFile{"added_tokens.json"},
                                          ReadFile{"chat_template.jinja"},
                                          ReadFile{"chat_template.jinja2"},
                                          ReadFile{"chat_template.json"},
                                          ReadFile{"merges.txt"},
                                          ReadFile{"sentencepiece.bpe.model"},
                                          ReadFile{"special_tokens_map.json"},
                                          ReadFile{"spiece.model"},
                                          ReadFile{"tekken.json"},
                                          ReadFile{"tiktoken.model"},
                                          ReadFile{"tokenizer.json"},
                                          ReadFile{"tokenizer.model"},
                                          ReadFile{"tokenizer_config.json"},
                                          ReadFile{"vocab.json"},
                                          ReadFile{"vocab.txt"},
                                          ReadFile{"adapter_config.json", false},
                                          ReadFile{"generation_config.json", false},
                                          ReadFile{"modules.json", false},
                                          ReadFile{"params.json", false},
                                          ReadFile{"preprocessor_config.json", false},
                                          ReadFile{"processor_config.json", false}};

/// Returns true if `path`, relative to the checkpoint, is a file that is read by name.
inline bool is_read_by_name(std::string_view path) {
  return std::ranges::find(kReadFiles, path, &ReadFile::name) != kReadFiles.end();
}

}  // namespace ingot::formats
