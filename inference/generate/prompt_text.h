#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "inference/chat/messages.h"
#include "inference/tokenizer/tokenizer.h"

namespace ingot::inference {

/// The token with which a raw text begins: bos_token of tokenizer_config.json where add_bos_token
/// asks for it. A tokenizer may have a post-processor that does the same by itself.
std::optional<std::int32_t> bos_before_text(const std::filesystem::path& directory,
                                            const Tokenizer& tokenizer);

/// Encodes text without changes, with the tokens that the post-processor puts around it, and with
/// `bos` in front unless it is there. Throws as Tokenizer::encode does.
std::vector<std::int32_t> encode_raw_text(const Tokenizer& tokenizer,
                                          std::optional<std::int32_t> bos, std::string_view text);

/// Returns the texts between blank lines, without the line end after each.
std::vector<std::string> split_prompts(std::string_view text);

/// A line of JSON lines: a text, or a conversation.
struct PromptLine {
  std::size_t line = 0;  ///< number of the line, from 1
  std::string text;      ///< empty for a conversation
  Conversation said;     ///< `messages` null for a text
  /// The value of "id", of any type; null without one.
  std::shared_ptr<const formats::Json> id;
  /// The value of "seconds", where it is a number.
  std::optional<double> seconds = {};
};

/// Parses JSON lines: each is a string, or an object with one of "text", "prompt" (strings) and
/// "messages" (with "tools" as parse_messages has them), and perhaps an "id"; other keys are passed
/// over, and so are blank lines. `where` names the file in errors, which have the line: kCorrupt
/// for a text that is no JSON, kInvalidArgument for any other value, an empty text, and messages
/// that check_messages refuses.
std::vector<PromptLine> parse_prompt_lines(std::string_view text, std::string_view where);
/// Parses the lines of requests that arrive one after the other, as parse_prompt_lines does: each
/// line has "seconds", not fewer than the line before. Throws kInvalidArgument naming file and
/// line.
std::vector<PromptLine> parse_arrivals(std::string_view text, std::string_view where);
/// True if the text of `path` is JSON lines: the name ends in `.jsonl`, or it is the standard input
/// or a pipe, which has none, and the first line is one that parse_prompt_lines takes.
bool has_prompt_lines(const std::filesystem::path& path, std::string_view text);

}  // namespace ingot::inference
