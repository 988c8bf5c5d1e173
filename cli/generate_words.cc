#include "cli/generate_words.h"

#include <algorithm>
#include <fstream>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/flag_table.h"
#include "cli/idle_words.h"
#include "cli/size_option.h"
#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "inference/chat/chat_format.h"

namespace ingot::cli {
namespace {

std::string profile_names() {
  std::vector<std::string_view> names;
  for (const inference::Profile profile : inference::profiles()) {
    names.push_back(inference::profile_name(profile));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string kv_format_names() {
  std::vector<std::string_view> names;
  for (const inference::KvFormat format : inference::kv_formats()) {
    names.push_back(inference::kv_format_name(format));
  }
  return fmt::format("{}", fmt::join(names, ", "));
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

}  // namespace

std::size_t GenerateWords::n_threads() const {
  return threads == 0 ? available_processors() : threads;
}

inference::Profile GenerateWords::chosen_profile() const {
  if (const auto found = inference::find_profile(profile)) return *found;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--profile {}: there are {}", profile, profile_names()));
}

inference::KvFormat GenerateWords::kv_format() const {
  if (kv_cache.empty()) {
    return chosen_profile() == inference::Profile::kF32 ? inference::KvFormat::kF32
                                                        : inference::KvFormat::kBf16;
  }
  if (const auto found = inference::find_kv_format(kv_cache)) return *found;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--kv-cache {}: there are {}", kv_cache, kv_format_names()));
}

std::uint64_t GenerateWords::memory_limit() const {
  return mem_limit.empty() ? available_memory() : parse_size(mem_limit, "--mem-limit");
}

void GenerateWords::require_one_source() const {
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
  const IdleWord idle[] = {
      {"--raw", raw, !tokens && messages_file.empty(), "--prompt and --prompts"},
      {"--chat-format", !chat_format.empty(), is_chat, "prompts in a chat format"},
      {"--thinking", thinking.has_value(), is_chat, "prompts in a chat format"},
      {"--context", context.has_value(), interactive, "--interactive"},
      {"--temperature", temperature.has_value(), !greedy, "sampling, not --greedy"},
      {"--top-p", top_p.has_value(), !greedy, "sampling, not --greedy"},
      {"--top-k", top_k.has_value(), !greedy, "sampling, not --greedy"},
      {"--seed", seed.has_value(), !greedy, "sampling, not --greedy"},
  };
  refuse_idle_words(idle);
  const auto between = [](const std::optional<double>& value, double most) {
    return !value || (*value >= 0 && *value <= most);
  };
  if (!between(temperature, 1e4) || !between(top_p, 1)) {
    throw Error(ErrorCode::kInvalidArgument, "--temperature is 0 or more, --top-p is from 0 to 1");
  }
}

void declare_generate_words(FlagTable& table, GenerateWords& words) {
  table.add(FlagGroup::kCommon,
            {{"directory",
              &words.directory,
              "directory of the checkpoint, whole or in slices",
              {.is_required = true}},
             {"--prompt", &words.prompt, "what the user says"},
             {"--interactive", &words.interactive, "a conversation; /clear forgets it, /exit ends"},
             {"--greedy", &words.greedy, "take the likeliest token, whatever the files say"},
             {"--profile", &words.profile, fmt::format("arithmetic: {}", profile_names())}});
  table.add(FlagGroup::kSource,
            {{"--config", &words.config,
              "config.json of the model, for shards that have none beside them"}});
  table.add(
      FlagGroup::kPrompts,
      {{"--prompts", &words.prompts_file,
        "file of prompts, separated by blank lines, or JSON lines (.jsonl), answered as one batch"},
       {"--messages", &words.messages_file,
        "JSON conversation: a list of messages, or {\"messages\": [...], \"tools\": [...]}"},
       {"--tokens", &words.tokens, "token ids in, token ids out; needs no tokenizer"},
       {"--system", &words.system, "system message before the prompt"},
       {"--chat-format", &words.chat_format,
        fmt::format("how messages become text, instead of what the checkpoint's files say: {}",
                    fmt::join(inference::chat_formats(), ", "))},
       {"--raw", &words.raw, "the prompt as it is, without chat format"},
       {"--thinking", &words.thinking,
        "ask chat formats that can for a reasoned answer, or for none (default: as the format has "
        "it)"},
       {"--context", &words.context,
        "tokens that a conversation of --interactive may have (default 8192)"}});
  table.add(FlagGroup::kAnswers,
            {{"--max-new-tokens", &words.max_new_tokens,
              "longest answer (generation_config.json, else 512)"},
             {"--temperature", &words.temperature, "0 takes the likeliest token"},
             {"--top-p", &words.top_p, "keep the likeliest tokens up to this probability"},
             {"--top-k", &words.top_k, "keep this many tokens; 0: all"},
             {"--seed", &words.seed,
              "the same seed (default 0), prompt and options give the same answer"}});
  table.add(
      FlagGroup::kJob,
      {{"--kv-cache", &words.kv_cache,
        fmt::format("numbers of the cache: {} (f32 in profile f32, else bf16)", kv_format_names())},
       {"--mem-limit", &words.mem_limit,
        "memory for weights and caches; experts beyond it are read when needed (what is "
        "available)"},
       {"--threads", &words.threads, kThreadsHelp, {.range = kThreadRange}}});
  table.add(FlagGroup::kReport, {{"--json", &words.json, kJsonHelp}});
}

}  // namespace ingot::cli
