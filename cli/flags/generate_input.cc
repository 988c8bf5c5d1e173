#include "cli/flags/generate_input.h"

#include <algorithm>
#include <charconv>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/flags/flag_table.h"
#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/base/printable.h"
#include "formats/json/json.h"
#include "inference/chat/messages.h"
#include "inference/generate/prompt_text.h"

namespace ingot::cli {

using formats::Json;

namespace {

std::string profile_names() {
  return names_of(inference::profiles(), inference::profile_name);
}

std::string kv_format_names() {
  return names_of(inference::kv_formats(), inference::kv_format_name);
}

// MemAvailable of the system, or of the group of processes that we run in where that is less.
std::uint64_t available_memory() {
  std::uint64_t available = std::numeric_limits<std::uint64_t>::max();
  std::ifstream system("/proc/meminfo");
  std::string key, unit;
  for (std::uint64_t n = 0; system >> key >> n; std::getline(system, unit)) {
    if (key == "MemAvailable:") available = n * 1024;
  }
  std::ifstream most("/sys/fs/cgroup/memory.max"), used("/sys/fs/cgroup/memory.current");
  std::uint64_t limit = 0, taken = 0;
  if (most >> limit && used >> taken) {
    available = std::min(available, limit > taken ? limit - taken : 0);
  }
  return available;
}

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

inference::Profile GenerateFlags::chosen_profile() const {
  if (const auto found = inference::find_profile(profile)) return *found;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--profile {}: there are {}", profile, profile_names()));
}

inference::KvFormat GenerateFlags::kv_format() const {
  if (kv_cache.empty()) {
    return chosen_profile() == inference::Profile::kF32 ? inference::KvFormat::kF32
                                                        : inference::KvFormat::kBf16;
  }
  if (const auto found = inference::find_kv_format(kv_cache)) return *found;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--kv-cache {}: there are {}", kv_cache, kv_format_names()));
}

std::uint64_t GenerateFlags::memory_limit() const {
  return mem_limit.empty() ? available_memory() : parse_size(mem_limit, "--mem-limit");
}

void GenerateFlags::require_one_source() const {
  const int n = (prompt ? 1 : 0) + (tokens ? 1 : 0) + (prompts_file.empty() ? 0 : 1) +
                (messages_file.empty() ? 0 : 1) + (interactive ? 1 : 0);
  if (n != 1) {
    throw Error(ErrorCode::kInvalidArgument,
                n == 0 ? "nothing to answer: give --prompt TEXT, --prompts FILE, --messages FILE, "
                         "--tokens IDS or --interactive"
                       : "give one of --prompt, --prompts, --messages, --tokens and --interactive");
  }
  if (system && (raw || tokens || !messages_file.empty())) {
    throw Error(ErrorCode::kInvalidArgument,
                "--system goes with --prompt, --prompts and --interactive, not with --raw");
  }
  if (interactive && (raw || json)) {
    throw Error(ErrorCode::kInvalidArgument, "--interactive takes neither --raw nor --json");
  }
  const bool is_chat = !raw && !tokens;
  const IdleFlag idle[] = {
      {"--raw", raw, !tokens && messages_file.empty(), "--prompt and --prompts"},
      {"--chat-format", !chat_format.empty(), is_chat, "prompts in a chat format"},
      {"--thinking", thinking.has_value(), is_chat, "prompts in a chat format"},
      {"--context", context.has_value(), interactive, "--interactive"},
      {"--temperature", temperature.has_value(), !greedy, "sampling, not --greedy"},
      {"--top-p", top_p.has_value(), !greedy, "sampling, not --greedy"},
      {"--top-k", top_k.has_value(), !greedy, "sampling, not --greedy"},
      {"--seed", seed.has_value(), !greedy, "sampling, not --greedy"},
  };
  refuse_idle_flags(idle);
  const auto between = [](const std::optional<double>& value, double most) {
    return !value || (*value >= 0 && *value <= most);
  };
  if (!between(temperature, 1e4) || !between(top_p, 1)) {
    throw Error(ErrorCode::kInvalidArgument, "--temperature is 0 or more, --top-p is from 0 to 1");
  }
}

void declare_generate_flags(FlagTable& table, GenerateFlags& flags) {
  table.add(FlagGroup::kCommon,
            {required("directory", &flags.directory, kDirectoryHelp),
             {"--prompt", &flags.prompt, "what the user says"},
             {"--interactive", &flags.interactive, "a conversation; /clear forgets it, /exit ends"},
             {"--greedy", &flags.greedy, "take the likeliest token, whatever the files say"},
             {"--profile", &flags.profile, fmt::format("arithmetic: {}", profile_names())}});
  table.add(FlagGroup::kSource, {{"--config", &flags.config, kConfigHelp}});
  table.add(
      FlagGroup::kPrompts,
      {{"--prompts", &flags.prompts_file,
        "file of prompts, separated by blank lines, or JSON lines (.jsonl), answered as one batch"},
       {"--messages", &flags.messages_file,
        "JSON conversation: a list of messages, or {\"messages\": [...], \"tools\": [...]}"},
       {"--tokens", &flags.tokens, "token ids in, token ids out; needs no tokenizer"},
       {"--system", &flags.system, "system message before the prompt"},
       {"--chat-format", &flags.chat_format,
        fmt::format("how messages become text, instead of what the checkpoint's files say: {}",
                    fmt::join(inference::chat_formats(), ", "))},
       {"--raw", &flags.raw, "the prompt as it is, without chat format"},
       {"--thinking", &flags.thinking,
        "ask chat formats that can for a reasoned answer, or for none (default: as the format has "
        "it)"},
       {"--context", &flags.context,
        "tokens that a conversation of --interactive may have (default 8192)"}});
  table.add(FlagGroup::kAnswers,
            {{"--max-new-tokens", &flags.max_new_tokens,
              "longest answer (generation_config.json, else 512)"},
             {"--temperature", &flags.temperature, "0 takes the likeliest token"},
             {"--top-p", &flags.top_p, "keep the likeliest tokens up to this probability"},
             {"--top-k", &flags.top_k, "keep this many tokens; 0: all"},
             {"--seed", &flags.seed,
              "the same seed (default 0), prompt and options give the same answer"}});
  table.add(
      FlagGroup::kJob,
      {{"--kv-cache", &flags.kv_cache,
        fmt::format("numbers of the cache: {} (f32 in profile f32, else bf16)", kv_format_names())},
       {"--mem-limit", &flags.mem_limit,
        "memory for weights and caches; experts beyond it are read when needed (what is "
        "available)"},
       threads_flag(&flags.threads)});
  table.add(FlagGroup::kReport, {json_flag(&flags.json)});
}

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
