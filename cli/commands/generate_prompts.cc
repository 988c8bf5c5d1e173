#include "cli/commands/generate_prompts.h"

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

PromptReader::PromptReader(const GenerateFlags& flags, const formats::Checkpoint& source)
    : flags_(flags) {
  const std::filesystem::path& directory = source.directory();
  if (flags.tokens) {
    if (std::filesystem::exists(directory / "tokenizer.json")) {
      tokenizer_ = inference::Tokenizer::open(directory);
    }
    return;
  }
  tokenizer_ = inference::Tokenizer::open(directory);
  bos_ = inference::bos_before_text(directory, *tokenizer_);
  if (!flags.raw) {
    format_ = inference::open_chat_format(directory, source.family().name, flags.chat_format);
  }
}

std::vector<std::int32_t> PromptReader::encode(const Json& messages, const Json& tools) const {
  inference::ChatOptions options;
  options.thinking = flags_.thinking;
  options.date = today();
  // The format puts the token of the beginning itself, where it wants one.
  return tokenizer_->encode(format_->render(messages, tools, options),
                            /*add_special_tokens=*/false);
}

Json PromptReader::opening() const {
  Json messages = Json::array();
  if (flags_.system) messages.push_back({{"role", "system"}, {"content", *flags_.system}});
  return messages;
}

std::vector<std::int32_t> PromptReader::encode_text(std::string_view text) const {
  if (text.empty()) throw Error(ErrorCode::kInvalidArgument, "the prompt is empty");
  if (!is_utf8(text)) {
    throw Error(ErrorCode::kInvalidArgument, "the prompt is not valid UTF-8");
  }
  if (flags_.raw) return inference::encode_raw_text(*tokenizer_, bos_, text);
  Json messages = opening();
  messages.push_back({{"role", "user"}, {"content", std::string(text)}});
  return encode(messages, nullptr);
}

std::vector<std::vector<std::int32_t>> PromptReader::read() const {
  if (flags_.tokens) return {parse_ids(*flags_.tokens)};
  if (flags_.prompt) return {encode_text(*flags_.prompt)};
  if (!flags_.messages_file.empty()) {
    const inference::Conversation conversation = inference::parse_messages(
        read_text_file(flags_.messages_file, kMaxPromptBytes), flags_.messages_file);
    return {encode(*conversation.messages, *conversation.tools)};
  }
  std::vector<std::vector<std::int32_t>> prompts;
  const auto add = [&](const std::string& place, const auto& encoded) {
    try {
      prompts.push_back(encoded());
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{}: {}", place, error.what()))
          .in_file(flags_.prompts_file);
    }
  };
  const std::string text = read_text_file(flags_.prompts_file, kMaxPromptBytes);
  if (!inference::has_prompt_lines(flags_.prompts_file)) {
    for (const std::string& prompt : inference::split_prompts(text))
      add(fmt::format("prompt {}", prompts.size()), [&] { return encode_text(prompt); });
  } else {
    for (const inference::PromptLine& line :
         inference::parse_prompt_lines(text, flags_.prompts_file)) {
      add(fmt::format("line {}", line.line), [&] {
        if (line.said.messages == nullptr) return encode_text(line.text);
        if (flags_.raw || flags_.system) {
          throw Error(ErrorCode::kInvalidArgument,
                      "holds messages, which take neither --raw nor --system");
        }
        return encode(*line.said.messages, *line.said.tools);
      });
    }
  }
  if (prompts.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "holds no prompt").in_file(flags_.prompts_file);
  }
  return prompts;
}

}  // namespace ingot::cli
