#include "cli/generate_prompts.h"

#include <charconv>
#include <ctime>
#include <filesystem>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "inference/chat/messages.h"

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

// Texts between blank lines.
std::vector<std::string> split_prompts(std::string_view text) {
  std::vector<std::string> prompts;
  std::string current;
  const auto finish = [&] {
    if (!current.empty()) prompts.push_back(std::move(current));
    current.clear();
  };
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t") == std::string_view::npos) {
      finish();
    } else {
      current += (current.empty() ? "" : "\n") + std::string(line);
    }
  }
  finish();
  return prompts;
}

// The id that add_bos_token puts before a text.
std::optional<std::int32_t> bos_of(const std::filesystem::path& directory,
                                   const inference::Tokenizer& tokenizer) {
  const std::filesystem::path path = directory / "tokenizer_config.json";
  if (!std::filesystem::exists(path)) return std::nullopt;
  const Json config = formats::read_json_file(path, kMaxPromptBytes);
  const auto asked = config.find("add_bos_token"), token = config.find("bos_token");
  if (asked == config.end() || !asked->is_boolean() || !asked->get<bool>()) return std::nullopt;
  if (token == config.end()) return std::nullopt;
  if (token->is_string()) return tokenizer.id_of(token->get<std::string>());
  const auto content = token->find("content");
  return content != token->end() && content->is_string()
             ? tokenizer.id_of(content->get<std::string>())
             : std::nullopt;
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
  bos_ = bos_of(directory, *tokenizer_);
  if (!words.raw) {
    format_ = inference::open_chat_format(directory, source.family().name, words.chat_format);
  }
}

std::vector<std::int32_t> PromptReader::encode_raw(std::string_view text) const {
  std::vector<std::int32_t> ids = tokenizer_->encode(text, /*add_special_tokens=*/true);
  if (bos_ && (ids.empty() || ids.front() != *bos_)) ids.insert(ids.begin(), *bos_);
  return ids;
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
  if (!formats::is_utf8(text)) {
    throw Error(ErrorCode::kInvalidArgument, "the prompt is not valid UTF-8");
  }
  if (words_.raw) return encode_raw(text);
  Json messages = opening();
  messages.push_back({{"role", "user"}, {"content", std::string(text)}});
  return encode(messages, nullptr);
}

std::vector<std::vector<std::int32_t>> PromptReader::read() const {
  if (words_.tokens) return {parse_ids(*words_.tokens)};
  if (words_.prompt) return {encode_text(*words_.prompt)};
  if (!words_.messages_file.empty()) {
    const inference::Conversation conversation = inference::parse_messages(
        read_text_file(words_.messages_file, kMaxPromptBytes), words_.messages_file);
    return {encode(conversation.messages, conversation.tools)};
  }
  std::vector<std::vector<std::int32_t>> prompts;
  for (const std::string& text :
       split_prompts(read_text_file(words_.prompts_file, kMaxPromptBytes))) {
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
