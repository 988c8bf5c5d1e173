#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/flags/generate_flags.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/json/json_fwd.h"
#include "inference/chat/chat_format.h"
#include "inference/tokenizer/tokenizer.h"

namespace ingot::cli {

/// Turns what the user gave into token ids.
class PromptReader {
 public:
  /// Opens tokenizer and chat format as far as the flags need them.
  PromptReader(const GenerateFlags& flags, const formats::Checkpoint& source);

  /// The prompts of every source but --interactive.
  [[nodiscard]] std::vector<std::vector<std::int32_t>> read() const;
  /// A conversation so far, ending where the answer begins.
  [[nodiscard]] std::vector<std::int32_t> encode(const formats::Json& messages,
                                                 const formats::Json& tools) const;
  /// Messages with which a conversation starts: --system, or none.
  [[nodiscard]] formats::Json opening() const;
  /// Null where ids go in and out and there is none.
  [[nodiscard]] const inference::Tokenizer* tokenizer() const {
    return tokenizer_ ? &*tokenizer_ : nullptr;
  }

 private:
  [[nodiscard]] std::vector<std::int32_t> encode_text(std::string_view text) const;

  const GenerateFlags& flags_;
  std::optional<inference::Tokenizer> tokenizer_;
  std::unique_ptr<inference::ChatFormat> format_;
  std::optional<std::int32_t> bos_;  ///< that a raw text begins with
};

}  // namespace ingot::cli
