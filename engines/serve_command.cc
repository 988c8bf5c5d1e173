#include "engines/serve_command.h"

#include <string_view>

#include <fmt/format.h>

namespace ingot::engines {

namespace {

constexpr std::uint64_t kWeightsPerDevice = 60'000'000'000;
constexpr std::uint64_t kMaxDevices = 1024;

std::uint64_t n_devices(std::uint64_t n_bytes) {
  std::uint64_t n = 1;
  while (n < kMaxDevices && n_bytes / n > kWeightsPerDevice) n *= 2;
  return n;
}

}  // namespace

std::string shell_word(const std::string& text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./+=:,@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

std::string serve_command(const EngineVerdict& verdict, const Served& checkpoint) {
  const EngineRow& engine = *verdict.engine;
  if (engine.command.empty()) return {};
  std::string command = fmt::format("{} {}", engine.command, shell_word(checkpoint.directory));
  const std::uint64_t n = n_devices(checkpoint.n_bytes);
  if (n > 1 && !engine.ranks_option.empty())
    command += fmt::format(" {} {}", engine.ranks_option, n);
  for (const std::string& option : verdict.options) command += " " + option;
  if (checkpoint.brings_code && !engine.code_option.empty())
    command += fmt::format(" {}", engine.code_option);
  return command;
}

}  // namespace ingot::engines
