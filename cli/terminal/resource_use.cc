#include "cli/terminal/resource_use.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <utility>

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include "formats/files/folder.h"
#include "report/figures.h"

namespace ingot::cli {

namespace {

double seconds_of(const struct timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

// The kernel's account of this process.
std::uint64_t disk_bytes() {
  std::ifstream account("/proc/self/io");
  std::string key;
  std::uint64_t bytes = 0;
  for (std::uint64_t n = 0; account >> key >> n;) {
    if (key == "read_bytes:" || key == "write_bytes:") bytes += n;
  }
  return bytes;
}

struct ThreadStates {
  std::size_t running = 0;  // or ready to run
  std::size_t on_disk = 0;  // in a call that waits for a device
};

// States of all threads but the calling one.
ThreadStates thread_states() {
  ThreadStates states;
  const std::string own = std::to_string(::gettid());
  std::error_code failure;
  const std::filesystem::path tasks = "/proc/self/task";
  for (const std::string& name : names_in(tasks, failure)) {
    if (name == own) continue;
    std::ifstream file(tasks / name / "stat");
    std::string line;
    std::getline(file, line);
    // The name of the thread is in brackets and may hold anything; its state comes behind.
    const std::size_t close = line.rfind(')');
    if (close == std::string::npos || close + 2 >= line.size()) continue;
    states.running += line[close + 2] == 'R' ? 1U : 0U;
    states.on_disk += line[close + 2] == 'D' ? 1U : 0U;
  }
  return states;
}

}  // namespace

ResourceUse operator-(const ResourceUse& later, const ResourceUse& earlier) {
  return {.seconds = later.seconds - earlier.seconds,
          .cpu_seconds = later.cpu_seconds - earlier.cpu_seconds,
          .system_seconds = later.system_seconds - earlier.system_seconds,
          .wanted_core_seconds = later.wanted_core_seconds - earlier.wanted_core_seconds,
          .waited_disk_seconds = later.waited_disk_seconds - earlier.waited_disk_seconds,
          .disk_bytes = later.disk_bytes - earlier.disk_bytes,
          .major_faults = later.major_faults - earlier.major_faults};
}

ResourceUse resource_use() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return {.seconds = std::chrono::duration<double>(now).count(),
          .cpu_seconds = seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime),
          .system_seconds = seconds_of(usage.ru_stime),
          .disk_bytes = disk_bytes(),
          .major_faults = static_cast<std::uint64_t>(usage.ru_majflt)};
}

void ThreadWatch::look() {
  constexpr double kInterval = 0.2;
  const double now = resource_use().seconds;
  const double since = looked_at_ == 0 ? 0 : now - looked_at_;
  if (looked_at_ != 0 && since < kInterval) return;
  looked_at_ = now;
  if (since == 0) return;
  const ThreadStates states = thread_states();
  seen_.wanted_core_seconds += since * static_cast<double>(states.running);
  seen_.waited_disk_seconds += since * static_cast<double>(states.on_disk);
}

ResourceUse ThreadWatch::take() {
  return std::exchange(seen_, {});
}

std::string limit_text(const ResourceUse& use, std::size_t threads) {
  // Above these shares a resource is the limit.
  constexpr double kWantedCores = 0.75, kWantedCore = 0.75, kWaitingThreads = 0.5;
  constexpr double kFaultsPerSecond = 200, kDiskBytesPerSecond = 20e6;
  if (use.seconds <= 0) return "-";
  const double cores = std::max(use.cpu_seconds, use.wanted_core_seconds) / use.seconds;
  const double faults = static_cast<double>(use.major_faults) / use.seconds;
  const double disk = static_cast<double>(use.disk_bytes) / use.seconds;
  const double wanted = cores / static_cast<double>(std::max<std::size_t>(threads, 1));
  const std::string cores_text =
      fmt::format("wanted {:.0f}% of the time", std::min(wanted, 1.0) * 100);
  if (faults >= kFaultsPerSecond)
    return fmt::format("memory ({} pages/s came back from the disk)", short_text(faults));
  if (wanted >= kWantedCores) return fmt::format("cores ({})", cores_text);
  if (disk >= kDiskBytesPerSecond || use.waited_disk_seconds / use.seconds >= kWaitingThreads) {
    return fmt::format("disk ({}/s; cores {})", bytes_text(static_cast<std::uint64_t>(disk)),
                       cores_text);
  }
  return cores >= kWantedCore ? "one core" : "-";
}

std::vector<WorkShare> reading_shares(const ResourceUse& use, std::size_t threads) {
  const double all = std::max(use.seconds * static_cast<double>(threads), 1e-9);
  const double computing = use.cpu_seconds - use.system_seconds;
  const double reading = use.system_seconds + use.waited_disk_seconds;
  // Sampled, and so not exactly what the kernel counts.
  const double others = std::max(use.wanted_core_seconds - use.cpu_seconds, 0.0);
  std::vector<WorkShare> shares = {
      {"computing", computing / all},
      {"reading", reading / all},
      {"other programs", others / all},
      {"waiting", std::max(1 - (computing + reading + others) / all, 0.0)}};
  std::ranges::stable_sort(shares, std::ranges::greater(), &WorkShare::share);
  return shares;
}

formats::Json limits_json(const std::vector<WorkShare>& shares) {
  return formats::json_list(shares, [](const WorkShare& share) -> formats::Json {
    return {{"work", share.work}, {"share", share.share}};
  });
}

std::string limits_text(const std::vector<WorkShare>& shares) {
  constexpr double kLeast = 0.01;
  std::string text;
  for (const auto& [work, share] : shares) {
    if (share < kLeast && !text.empty()) break;
    text += fmt::format(fmt::runtime(text.empty() ? "limited by {} ({:.0f}% of the threads' time)"
                                                  : ", next by {} ({:.0f}%)"),
                        work, 100 * std::min(share, 1.0));
  }
  return text;
}

}  // namespace ingot::cli
