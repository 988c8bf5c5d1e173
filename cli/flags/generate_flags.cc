#include "cli/flags/generate_flags.h"

#include <algorithm>
#include <fstream>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/flags/flag_table.h"
#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "inference/chat/chat_format.h"

namespace ingot::cli {
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

}  // namespace ingot::cli
