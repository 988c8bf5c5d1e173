#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "convert/output/output_directory.h"
#include "convert/plan/job_part.h"
#include "formats/base/fd.h"

namespace ingot::convert {

/// The run of a job: read in cli/, shown to a second run that wants the same output.
struct RunName {
  std::string host;
  std::string boot;  ///< the kernel's boot id: the same for all processes that see our locks
  std::uint64_t pid = 0;
  std::string started;  ///< time when the run started, for people
  std::string command;  ///< first words of its command, for people
};

/// How a claim shows that its run is alive where locks cannot: the file is touched all the time.
/// Ages are differences of times that the file system gave, never a host's.
struct Renewal {
  std::chrono::milliseconds every{10'000};
  std::chrono::milliseconds dead{60'000};  ///< an older claim is free to take
  /// Called while it is unknown whether a run is dead; may throw.
  std::function<void()> waiting = [] {};
};

/// The exclusive right to write into an output, or to write a part of a job there: a file in
/// `.ingot-partial/claims` that names its run, and is locked (flock) and touched for as long as
/// this object lives. The lock ends with the process, so a claim that is still there and can be
/// locked was left by a dead run of this host. That of a run of another host, or on a file system
/// without locks, is dead when it is not renewed any more. A run that takes over a dead one makes
/// the claim of the next number (RunFile), which only one process can. A run that was thought dead,
/// and was asleep, stops when it sees that; its writes until then have the right bytes. Parts of
/// one division are at work together; claims of the whole, and of another division, exclude them.
class Claim {
 public:
  /// Makes the folders that are missing, and claims the output. Throws kExists, naming the other
  /// run, when it has the claim, or a part is at work. Waits until it is known whether a run is
  /// dead.
  static Claim take(const OutputPaths& paths, const RunName& run, const Renewal& renewal = {});
  /// Claims a part of the output, as take() claims the whole. `resume`: takes over the claim of a
  /// dead run, and waits until it is known to be dead; without `resume` such a claim is refused.
  static Claim take_part(const OutputPaths& paths, const RunName& run, const JobPart& part,
                         bool resume, const Renewal& renewal = {});
  /// Gives the claim back, and passes over what cannot be removed.
  ~Claim();
  /// Removes the claim, and the folders if they are empty: `.ingot-partial`, and the output if it
  /// was made here. For a finished output, which no command reads while that folder is there.
  /// Throws when one of them cannot be removed. Nothing else may be called afterwards.
  void give_back();
  Claim(Claim&& other) noexcept;
  Claim& operator=(Claim&&) = delete;
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

  /// Throws kMismatch when the claim is not this run's any more: another process removed it.
  void require_held() const;
  [[nodiscard]] const OutputPaths& paths() const { return paths_; }
  /// False where the file system has no locks.
  [[nodiscard]] bool is_locked() const { return is_locked_; }
  /// The journal of this run: that of the whole, or its own.
  [[nodiscard]] const std::filesystem::path& journal() const { return journal_; }

 private:
  Claim(OutputPaths paths, std::optional<JobPart> part)
      : paths_(std::move(paths)), part_(part), journal_(paths_.journal) {}
  static Claim take_as(const OutputPaths& paths, const RunName& run,
                       const std::optional<JobPart>& part, bool resume, const Renewal& renewal);
  bool try_take(const RunName& run, bool resume, const Renewal& renewal);
  void hold(Fd file, LockState state, const RunName& run, const Renewal& renewal);

  OutputPaths paths_;
  std::optional<JobPart> part_;
  std::filesystem::path path_, journal_;
  std::filesystem::path next_;  // claim of who takes it over
  bool made_output_ = false;
  bool is_locked_ = false;
  Fd file_;
  std::jthread renewing_;
};

}  // namespace ingot::convert
