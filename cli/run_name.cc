#include "cli/run_name.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <fstream>
#include <iterator>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

namespace ingot::cli {
namespace {

// Enough to know a command by.
constexpr std::size_t kMaxCommandBytes = 200;

// Files of /proc have no length; what cannot be read is empty.
std::string text_of(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string command() {
  std::string words = text_of("/proc/self/cmdline");
  while (!words.empty() && words.back() == '\0') words.pop_back();
  std::replace(words.begin(), words.end(), '\0', ' ');
  if (words.size() <= kMaxCommandBytes) return words;
  return words.substr(0, kMaxCommandBytes) + " ...";
}

}  // namespace

convert::RunName this_run() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host.front() = '\0';
  std::string boot = text_of("/proc/sys/kernel/random/boot_id");
  if (!boot.empty() && boot.back() == '\n') boot.pop_back();
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  return {.host = host.data(),
          .boot = std::move(boot),
          .pid = static_cast<std::uint64_t>(::getpid()),
          .started = fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(now)),
          .command = command()};
}

}  // namespace ingot::cli
