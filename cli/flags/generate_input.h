#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "formats/json/json_fwd.h"
#include "inference/base/profile.h"
#include "inference/cache/kv_cache.h"
#include "inference/chat/chat_format.h"
#include "inference/generate/prompt_text.h"
#include "inference/generate/scheduler.h"
#include "inference/tokenizer/tokenizer.h"

namespace ingot {
struct FlagTable;
}

namespace ingot::cli {

/// The flags of `ingot generate`, as given.
struct GenerateFlags {
  std::string directory, config;
  // Where prompts come from: one of these.
  std::optional<std::string> prompt, tokens;
  std::string prompts_file, arrivals_file, messages_file;
  bool interactive = false;
  // How they are put.
  std::optional<std::string> system;
  std::string chat_format;
  bool raw = false;
  std::optional<bool> thinking;
  // How an answer is chosen.
  std::optional<std::size_t> max_new_tokens, top_k;
  std::optional<double> temperature, top_p;
  std::optional<std::uint64_t> seed;
  bool greedy = false;
  // How it is computed.
  std::string profile = "native", kv_cache, mem_limit;
  std::size_t threads = 0;
  std::size_t drafts = 0, batch_tokens = inference::kPrefillRows;
  std::optional<std::size_t> context;  ///< 8192
  bool jsonl = false;
  std::string log_file;
  /// kInvalidArgument naming the profiles that there are.
  [[nodiscard]] inference::Profile chosen_profile() const;
  /// The format of --kv-cache, else f32 in profile f32 and bf16 in the others.
  [[nodiscard]] inference::KvFormat kv_format() const;
  /// The limit of --mem-limit, else the memory that the system calls available.
  [[nodiscard]] std::uint64_t memory_limit() const;
  /// kInvalidArgument unless there is exactly one source of prompts, and every option has an
  /// effect.
  void require_one_source() const;
};

void declare_generate_flags(FlagTable& table, GenerateFlags& flags);

/// A prompt as token ids, and as the user gave it.
struct GivenPrompt {
  std::vector<std::int32_t> ids;
  /// {"prompt": TEXT} or {"messages": [...], "tools": [...]}, with "id" where it has one; empty for
  /// ids.
  std::shared_ptr<const formats::Json> given;
  std::optional<double> arrives = {};  ///< seconds after the start (--arrivals)
};

/// Turns the user's input into token ids.
class PromptReader {
 public:
  /// Opens tokenizer and chat format as far as the flags need them.
  PromptReader(const GenerateFlags& flags, const formats::Checkpoint& source);

  /// The prompts of every source but --interactive.
  [[nodiscard]] std::vector<GivenPrompt> read() const;
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
  [[nodiscard]] std::vector<GivenPrompt> read_prompts_file() const;
  [[nodiscard]] GivenPrompt encode_line(const inference::PromptLine& line) const;

  const GenerateFlags& flags_;
  std::optional<inference::Tokenizer> tokenizer_;
  std::unique_ptr<inference::ChatFormat> format_;
  std::optional<std::int32_t> bos_;  ///< token that a raw text begins with
};

}  // namespace ingot::cli
