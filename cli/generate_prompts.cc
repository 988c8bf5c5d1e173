#include "cli/generate_prompts.h"

#include <charconv>
#include <ctime>
#include <filesystem>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/base/printable.h"
#include "formats/json/json.h"
#include "inference/chat/messages.h"
#include "inference/generate/prompt_text.h"

namespace ingot::cli {
namespace {

using formats::Json;

constexpr std::uint64_t kMaxPromptBytes = std::uint64_t{64} << 20U;

std::vector<std::int32_t> parse_ids(std::string_view text) {
  std::vector<std::int32_t> ids;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    if (*at == ' ' || *at == ',' || *at == '\n' || *at == '\t') {
      ++at;
      continue;
    }
    std::int32_t id = 0;
    const auto [next, failure] = std::from_chars(at, end, id);
    if (failure != std::errc() ||
        (next < end && *next != ' ' && *next != ',' && *next != '\n' && *next != '\t')) {
      throw Error(ErrorCode::kInvalidArgument,
                  "--tokens takes ids separated by commas or spaces, such as 0,12,345");
    }
    ids.push_back(id);
    at = next;
  }
  return ids;
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  return fmt::format("{:04}-{:02}-{:02}", local.tm_year + 1900, local.tm_mon + 1, local.tm_mday);
}

}  // namespace

PromptReader::PromptReader(const GenerateWords& words, const formats::Checkpoint& source)
    : words_(words) {
  const std::filesystem::path& directory = source.directory();
  if (words.tokens) {
    if (std::filesystem::exists(directory / "tokenizer.json")) {
      tokenizer_ = inference::Tokenizer::open(directory);
    }
    return;
  }
  tokenizer_ = inference::Tokenizer::open(directory);
  bos_ = inference::bos_before_text(directory, *tokenizer_);
  if (!words.raw) {
    format_ = inference::open_chat_format(directory, source.family().name, words.chat_format);
  }
}

std::vector<std::int32_t> PromptReader::encode(const Json& messages, const Json& tools) const {
  inference::ChatOptions options;
  options.thinking = words_.thinking;
  options.date = today();
  // The format puts the token of the beginning itself, where it wants one.
  return tokenizer_->encode(format_->render(messages, tools, options),
                            /*add_special_tokens=*/false);
}

Json PromptReader::opening() const {
  Json messages = Json::array();
  if (words_.system) messages.push_back({{"role", "system"}, {"content", *words_.system}});
  return messages;
}

std::vector<std::int32_t> PromptReader::encode_text(std::string_view text) const {
  if (text.empty()) throw Error(ErrorCode::kInvalidArgument, "the prompt is empty");
  if (!is_utf8(text)) {
    throw Error(ErrorCode::kInvalidArgument, "the prompt is not valid UTF-8");
  }
  if (words_.raw) return inference::encode_raw_text(*tokenizer_, bos_, text);
  Json messages = opening();
  messages.push_back({{"role", "user"}, {"content", std::string(text)}});
  return encode(messages, nullptr);
}

std::vector<std::vector<std::int32_t>> PromptReader::read_lines() const {
  std::vector<std::vector<std::int32_t>> prompts;
  for (const inference::PromptLine& line : inference::parse_prompt_lines(
           read_text_file(words_.prompts_file, kMaxPromptBytes), words_.prompts_file)) {
    try {
      const bool is_text = line.said.messages == nullptr;
      if (!is_text && (words_.raw || words_.system)) {
        throw Error(ErrorCode::kInvalidArgument,
                    "holds messages, which take neither --raw nor --system");
      }
      prompts.push_back(is_text ? encode_text(line.text)
                                : encode(*line.said.messages, *line.said.tools));
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("line {}: {}", line.line, error.what()))
          .in_file(words_.prompts_file);
    }
  }
  if (prompts.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "holds no prompt").in_file(words_.prompts_file);
  }
  return prompts;
}

std::vector<std::vector<std::int32_t>> PromptReader::read() const {
  if (words_.tokens) return {parse_ids(*words_.tokens)};
  if (words_.prompt) return {encode_text(*words_.prompt)};
  if (!words_.messages_file.empty()) {
    const inference::Conversation conversation = inference::parse_messages(
        read_text_file(words_.messages_file, kMaxPromptBytes), words_.messages_file);
    return {encode(*conversation.messages, *conversation.tools)};
  }
  if (inference::has_prompt_lines(words_.prompts_file)) return read_lines();
  std::vector<std::vector<std::int32_t>> prompts;
  for (const std::string& text :
       inference::split_prompts(read_text_file(words_.prompts_file, kMaxPromptBytes))) {
    try {
      prompts.push_back(encode_text(text));
    } catch (Error& error) {
      throw Error(error.code(), fmt::format("prompt {}: {}", prompts.size(), error.message()))
          .in_file(words_.prompts_file);
    }
  }
  if (prompts.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "holds no prompt").in_file(words_.prompts_file);
  }
  return prompts;
}

}  // namespace ingot::cli
