#include "cli/mpi/ranks.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <span>
#include <thread>

#include <dlfcn.h>

#include "cli/terminal/terminal.h"
#include "formats/base/error.h"
#include "formats/base/hash.h"

namespace ingot::cli {
namespace {

namespace fs = std::filesystem;
using inference::MpiModule;
using inference::RankMessage;

// Messages of a rank to rank 0: its arguments, its progress, the exit code that it ended with. Rank
// 0 answers the first when all are there, and sends the last when all is done.
enum Kind : std::uint64_t { kAsked, kProgress, kEnded };

// Waiting costs no processor: MPI's own waiting would.
constexpr std::chrono::milliseconds kPause{20};
// Time for printed text to pass through the launcher.
constexpr std::chrono::milliseconds kLastWords{200};

const MpiModule* running = nullptr;

// Next to the program where it was built, else where it was installed.
fs::path module_path() {
  const fs::path folder = fs::read_symlink("/proc/self/exe").parent_path();
  const fs::path built = folder / inference::kMpiModuleFile;
  return fs::exists(built) ? built : folder / INGOT_MODULE_FOLDER / inference::kMpiModuleFile;
}

const MpiModule* load() {
  const fs::path path = module_path();
  // The parts of MPI that it loads itself look for its symbols.
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    const char* const why = ::dlerror();
    throw Error(ErrorCode::kUnsupported,
                "cannot join the processes of this launcher: {} (install Open MPI and an ingot "
                "that was built with it, use --part and ingot join, or let each process work by "
                "itself with --mpi never)",
                why != nullptr ? why : "dlopen fails")
        .in_file(path.string());
  }
  const auto symbol =
      reinterpret_cast<decltype(&ingot_mpi_module)>(::dlsym(library, inference::kMpiModuleSymbol));
  const MpiModule* const module = symbol != nullptr ? symbol() : nullptr;
  if (module == nullptr || module->version != inference::kMpiModuleVersion) {
    throw Error(ErrorCode::kUnsupported, "is the module of another version of ingot")
        .in_file(path.string());
  }
  return module;
}

bool has(const char* variable) {
  return std::getenv(variable) != nullptr;
}

}  // namespace

MpiUse parse_mpi_use(std::string_view word) {
  if (word == "auto") return MpiUse::kAuto;
  if (word == "always") return MpiUse::kAlways;
  if (word == "never") return MpiUse::kNever;
  throw Error(ErrorCode::kInvalidArgument, "--mpi '{}' is none of auto, always, never", word);
}

bool is_launched(MpiUse use) {
  if (use != MpiUse::kAuto) return use == MpiUse::kAlways;
  return has("OMPI_COMM_WORLD_SIZE") || (has("PMIX_RANK") && has("PMIX_NAMESPACE"));
}

Ranks::Ranks(std::string_view words)
    : module_(load()), words_(hash_bytes(std::as_bytes(std::span(words))).high) {
  std::uint32_t n_ranks = 0;
  const bool is_usable = module_->start(&rank_, &n_ranks);
  running = module_;
  if (!is_usable)
    throw Error(ErrorCode::kUnsupported, "this MPI cannot be used by several threads");
  last_.resize(n_ranks);
  if (rank_ != 0) send(0, {{kAsked, words_, 0}});
  last_[rank_].is_here = true;
  wait_until(
      [&] { return rank_ != 0 ? last_[0].is_here : std::ranges::all_of(last_, &Last::is_here); });
  send_to_others({{kAsked, words_, 0}});
}

void Ranks::send(std::uint32_t to, const RankMessage& message) {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (module_->try_send(to, &message)) return;
    }
    std::this_thread::sleep_for(kPause);
  }
}

void Ranks::send_to_others(const RankMessage& message) {
  for (std::uint32_t to = 1; rank_ == 0 && to < size(); ++to) send(to, message);
}

// The caller holds the lock.
void Ranks::take(std::uint32_t from, const RankMessage& message) {
  const auto& [kind, first, second] = message.words;
  Last& last = last_[from];
  switch (kind) {
    case kAsked:
      if (first != words_) {
        throw Error(ErrorCode::kInvalidArgument,
                    "rank {} of this launch has other command-line arguments than rank 0; all "
                    "ranks need the same (--mpi never lets each process work by itself)",
                    from);
      }
      last.is_here = true;
      break;
    case kProgress:
      last.done = first;
      last.total = second;
      break;
    default:
      last.has_ended = true;
      last.code = static_cast<int>(first);
  }
}

// The caller holds the lock.
void Ranks::hear() {
  std::uint32_t from = 0;
  RankMessage message = {};
  while (module_->try_receive(&from, &message)) take(from, message);
  if (rank_ != 0 || !show) return;
  std::uint64_t done = 0, total = 0;
  for (const Last& last : last_) {
    done += last.done;
    total += last.total;
  }
  if (total > 0) show(done, total);
}

void Ranks::tell(std::uint64_t done, std::uint64_t total) {
  const std::lock_guard lock(mutex_);
  Last& own = last_[rank_];
  own.done = std::max(own.done, done);
  own.total = total;
  if (rank_ == 0) {
    hear();
  } else {
    const RankMessage message = {{kProgress, own.done, own.total}};
    // The next one will say it when the last one is still on its way.
    (void)module_->try_send(0, &message);
  }
}

void Ranks::wait_until(const std::function<bool()>& is_so) {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      hear();
      if (is_so()) return;
    }
    if (stop_requested())
      throw Error(ErrorCode::kInterrupted, "stopped while waiting for other ranks");
    std::this_thread::sleep_for(kPause);
  }
}

int Ranks::gather(int code) {
  if (rank_ != 0) {
    send(0, {{kProgress, last_[rank_].done, last_[rank_].total}});
    send(0, {{kEnded, static_cast<std::uint64_t>(code), 0}});
    wait_until([&] { return last_[0].has_ended; });
    return last_[0].code;
  }
  last_[0].has_ended = true;
  last_[0].code = code;
  wait_until([&] { return std::ranges::all_of(last_, &Last::has_ended); });
  return std::ranges::max_element(last_, {}, &Last::code)->code;
}

void Ranks::end(int code) {
  send_to_others({{kEnded, static_cast<std::uint64_t>(code), 0}});
  while (!module_->is_sent()) std::this_thread::sleep_for(kPause);
  module_->end();
  running = nullptr;
}

void end_all_ranks(int code) {
  if (running == nullptr) return;
  std::cout.flush();
  std::cerr.flush();
  std::this_thread::sleep_for(kLastWords);
  running->abort(code);
}

}  // namespace ingot::cli
