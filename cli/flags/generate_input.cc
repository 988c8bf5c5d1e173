#include "cli/flags/generate_input.h"

#include <algorithm>
#include <charconv>
#include <ctime>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/terminal/answer.h"
#include "formats/base/error.h"
#include "formats/base/printable.h"
#include "formats/files/available_memory.h"
#include "formats/json/json.h"
#include "formats/text/spelling.h"
#include "formats/text/text_input.h"
#include "inference/chat/messages.h"
#include "inference/generate/prompt_text.h"
#include "library/options/flag_table.h"

namespace ingot::cli {

using formats::Json;

namespace {

constexpr std::uint64_t kMaxPromptBytes = std::uint64_t{64} << 20U;

bool is_between(char c) {
  return std::string_view(" ,\t\r\n").find(c) != std::string_view::npos;
}

std::vector<std::int32_t> parse_ids(std::string_view text) {
  std::vector<std::int32_t> ids;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    if (is_between(*at)) {
      ++at;
      continue;
    }
    std::int32_t id = 0;
    const auto [next, failure] = std::from_chars(at, end, id);
    if (failure != std::errc() || (next < end && !is_between(*next))) {
      throw Error(ErrorCode::kInvalidArgument,
                  "--tokens takes ids separated by commas or spaces, such as 0,12,345");
    }
    ids.push_back(id);
    at = next;
  }
  return ids;
}

// The standard input as one text, without its last line end.
std::string text_of_input() {
  std::string text = read_text_input(kStandardInput, kMaxPromptBytes);
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

// The value of --tokens, or the lines of the standard input that have any.
std::vector<std::string> token_lists(const std::string& value) {
  if (value != "-") return {value};
  std::vector<std::string> lists;
  // Without a stream: one that gets no memory for a line ends there, and says nothing.
  const std::string text = read_text_input(kStandardInput, kMaxPromptBytes);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    if (line.find_first_not_of(" \t\r") != std::string::npos) lists.push_back(line);
    at = end + 1;
  }
  if (lists.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "holds no token ids").in_file(kStandardInput);
  }
  return lists;
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  return fmt::format("{:04}-{:02}-{:02}", local.tm_year + 1900, local.tm_mon + 1, local.tm_mday);
}

}  // namespace

inference::Profile GenerateFlags::chosen_profile() const {
  if (const auto found = inference::find_profile(profile)) return *found;
  refuse_word("--profile", profile, inference::profiles(), inference::profile_name);
}

inference::KvFormat GenerateFlags::kv_format() const {
  if (kv_cache.empty()) {
    return chosen_profile() == inference::Profile::kF32 ? inference::KvFormat::kF32
                                                        : inference::KvFormat::kBf16;
  }
  if (const auto found = inference::find_kv_format(kv_cache)) return *found;
  refuse_word("--kv-cache", kv_cache, inference::kv_formats(), inference::kv_format_name);
}

std::uint64_t GenerateFlags::memory_limit() const {
  return mem_limit.empty() ? available_memory() : memory_budget(mem_limit);
}

void GenerateFlags::require_one_source() const {
  const int n = (prompt ? 1 : 0) + (tokens ? 1 : 0) + (prompts_file.empty() ? 0 : 1) +
                (arrivals_file.empty() ? 0 : 1) + (messages_file.empty() ? 0 : 1) +
                (interactive ? 1 : 0);
  if (n != 1) {
    throw Error(ErrorCode::kInvalidArgument,
                n == 0 ? "nothing to answer: give --prompt TEXT, --prompts FILE, --arrivals FILE, "
                         "--messages FILE, --tokens IDS or --interactive"
                       : "give one of --prompt, --prompts, --arrivals, --messages, --tokens and "
                         "--interactive");
  }
  const auto between = [](const std::optional<double>& value, double most) {
    return !value || (*value >= 0 && *value <= most);
  };
  if (!between(temperature, 1e4) || !between(top_p, 1)) {
    throw Error(ErrorCode::kInvalidArgument, "--temperature is 0 or more, --top-p is from 0 to 1");
  }
}

void declare_generate_flags(FlagTable& table, GenerateFlags& flags) {
  const FlagRule sampled{
      .idle = belongs_to("sampling, not --greedy", [&flags] { return !flags.greedy; })};
  const auto of_chat =
      belongs_to("prompts in a chat format", [&flags] { return !flags.raw && !flags.tokens; });
  table.add(FlagGroup::kCommon,
            {required("directory", &flags.directory, kDirectoryHelp, ValueKind::kCheckpoint),
             {"--prompt", &flags.prompt, "message of the user; - is stdin", {.takes_stdin = true}},
             {"--interactive",
              &flags.interactive,
              "a conversation; /clear forgets it, /exit ends",
              {.excludes = {"--raw", "--json", "--jsonl"}, .is_for_people = true}},
             {"--greedy", &flags.greedy, "take the likeliest token, whatever the files say"},
             {"--profile",
              &flags.profile,
              "arithmetic: " + names_of(inference::profiles(), inference::profile_name),
              {.words = words_of(inference::profiles(), inference::profile_name)}}});
  table.add(FlagGroup::kSource,
            {{"--config", &flags.config, kConfigHelp, {.kind = ValueKind::kFile}}});
  table.add(
      FlagGroup::kPrompts,
      {{"--prompts",
        &flags.prompts_file,
        "file of prompts, separated by blank lines, or JSON lines (.jsonl); - is stdin",
        {.kind = ValueKind::kFile, .takes_stdin = true}},
       {"--arrivals",
        &flags.arrivals_file,
        "JSON lines of prompts, each with the \"seconds\" after the start at which it arrives; - "
        "is "
        "stdin",
        {.kind = ValueKind::kFile, .takes_stdin = true}},
       {"--messages",
        &flags.messages_file,
        "JSON conversation: a list of messages, or {\"messages\": [...], \"tools\": [...]}; - is "
        "stdin",
        {.kind = ValueKind::kFile, .takes_stdin = true}},
       {"--tokens",
        &flags.tokens,
        "token ids in, token ids out; needs no tokenizer; - is stdin, a list in each line",
        {.takes_stdin = true}},
       {"--system",
        &flags.system,
        "system message before the prompt",
        {.excludes = {"--raw", "--tokens", "--messages"}}},
       {"--chat-format",
        &flags.chat_format,
        fmt::format("format that makes text of messages, instead of the checkpoint's: {}",
                    fmt::join(inference::chat_formats(), ", ")),
        {.words = words_of(inference::chat_formats(), std::identity()), .idle = of_chat}},
       {"--raw",
        &flags.raw,
        "the prompt as it is, without chat format",
        {.idle = belongs_to("--prompt, --prompts and --arrivals",
                            [&flags] { return !flags.tokens && flags.messages_file.empty(); })}},
       {"--thinking",
        &flags.thinking,
        "ask chat formats that can for a reasoned answer, or for none (default: as the format has "
        "it)",
        {.idle = of_chat}},
       {"--context",
        &flags.context,
        "tokens that a conversation of --interactive may have (default 8192)",
        {.is_for_people = true,
         .idle = belongs_to("--interactive", [&flags] { return flags.interactive; })}}});
  table.add(FlagGroup::kAnswers,
            {{"--max-new-tokens", &flags.max_new_tokens,
              "longest answer (generation_config.json, else 512)"},
             {"--temperature", &flags.temperature, "0 takes the likeliest token", sampled},
             {"--top-p", &flags.top_p, "keep the likeliest tokens up to this probability", sampled},
             {"--top-k", &flags.top_k, "keep this many tokens; 0: all", sampled},
             {"--seed", &flags.seed,
              "the same seed (default 0), prompt and options give the same answer", sampled}});
  table.add(
      FlagGroup::kJob,
      {{"--draft",
        &flags.drafts,
        "tokens that the layer for multi-token prediction proposes and a step checks at once (few "
        "hold beyond the first); the answers stay the same (default 0: the layer is not used)",
        {.range = NumberRange{0, 16}}},
       {"--batch-tokens",
        &flags.batch_tokens,
        "tokens of all sequences that a step takes at most (default 512)",
        {.range = NumberRange{1, 1 << 20}}},
       {"--kv-cache",
        &flags.kv_cache,
        fmt::format("numbers of the cache: {} (f32 in profile f32, else bf16)",
                    names_of(inference::kv_formats(), inference::kv_format_name)),
        {.words = words_of(inference::kv_formats(), inference::kv_format_name)}},
       mem_limit_flag(&flags.mem_limit,
                      "memory for weights and caches; experts beyond it are read when needed "
                      "(default: the available memory)"),
       threads_flag(&flags.threads)});
  table.add(FlagGroup::kReport,
            {json_flag(&answer().is_json),
             {"--jsonl",
              &flags.jsonl,
              "one JSON object per answer, with its prompt, as answers finish; --prompts are JSON "
              "lines, too",
              {.excludes = {"--json"}, .is_for_people = true}},
             {"--log",
              &flags.log_file,
              "write a JSON line per step: its tokens, caches, time, and messages between ranks",
              {.kind = ValueKind::kFile, .is_written = true}}});
}

PromptReader::PromptReader(const GenerateFlags& flags, const formats::Checkpoint& source)
    : flags_(flags) {
  const std::filesystem::path& directory = source.directory();
  if (flags.tokens) {
    if (inference::Tokenizer::is_in(directory)) {
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

GivenPrompt PromptReader::encode_line(const inference::PromptLine& line) const {
  Json given = Json::object();
  if (line.id != nullptr) given["id"] = *line.id;
  if (line.said.messages == nullptr) {
    given["prompt"] = line.text;
    return {encode_text(line.text), std::make_shared<const Json>(std::move(given))};
  }
  if (flags_.raw || flags_.system) {
    throw Error(ErrorCode::kInvalidArgument,
                "holds messages, which take neither --raw nor --system");
  }
  given["messages"] = *line.said.messages;
  if (!line.said.tools->is_null()) given["tools"] = *line.said.tools;
  return {encode(*line.said.messages, *line.said.tools),
          std::make_shared<const Json>(std::move(given))};
}

std::vector<GivenPrompt> PromptReader::read_prompts_file() const {
  const bool arrive = !flags_.arrivals_file.empty();
  const std::string& path = arrive ? flags_.arrivals_file : flags_.prompts_file;
  const std::string text = read_text_input(path, kMaxPromptBytes);
  const bool has_lines = arrive || flags_.jsonl || inference::has_prompt_lines(path, text);
  std::vector<inference::PromptLine> lines;
  if (arrive) {
    lines = inference::parse_arrivals(text, path);
  } else if (has_lines) {
    lines = inference::parse_prompt_lines(text, path);
  } else {
    for (std::string& prompt : inference::split_prompts(text)) {
      inference::PromptLine& line = lines.emplace_back();
      line.line = lines.size() - 1;
      line.text = std::move(prompt);
    }
  }
  std::vector<GivenPrompt> prompts;
  for (const inference::PromptLine& line : lines) {
    try {
      prompts.push_back(encode_line(line));
      if (arrive) prompts.back().arrives = line.seconds;
    } catch (const Error& error) {
      throw Error(error.code(), "{} {}: {}", has_lines ? "line" : "prompt", line.line, error.what())
          .in_file(path);
    }
  }
  if (prompts.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "holds no prompt").in_file(path);
  }
  return prompts;
}

std::vector<GivenPrompt> PromptReader::read() const {
  if (flags_.tokens) {
    std::vector<GivenPrompt> prompts;
    for (const std::string& list : token_lists(*flags_.tokens))
      prompts.push_back({parse_ids(list), std::make_shared<const Json>(Json::object())});
    return prompts;
  }
  if (flags_.prompt) {
    inference::PromptLine line;
    line.text = *flags_.prompt == "-" ? text_of_input() : *flags_.prompt;
    return {encode_line(line)};
  }
  if (flags_.messages_file.empty()) return read_prompts_file();
  inference::PromptLine line;
  line.said = inference::parse_messages(read_text_input(flags_.messages_file, kMaxPromptBytes),
                                        flags_.messages_file);
  return {encode_line(line)};
}

}  // namespace ingot::cli
