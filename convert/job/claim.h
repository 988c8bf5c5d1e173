#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "convert/output/output_directory.h"
#include "formats/base/fd.h"

namespace ingot::convert {

/// Who runs a job: read in cli/, shown to a second run that wants the same output.
struct RunName {
  std::string host;
  std::string boot;  ///< the kernel's boot id: the same for all processes that see our locks
  std::uint64_t pid = 0;
  std::string started;  ///< when, for people
  std::string command;  ///< its first words
};

/// The exclusive right to write into an output: `.ingot-partial/claim`, locked (flock) and naming
/// its run for as long as this object lives. The lock ends with the process, so a claim that is
/// still there and can be locked was left by a dead run of this host, and is taken over. Where the
/// file system has no locks, the file itself is the claim, and only its user can say that it is
/// stale.
class Claim {
 public:
  /// Makes the folders that are missing, and claims the output. Throws kExists, naming the other
  /// run, when it has the claim or nobody can say that it has not.
  static Claim take(const OutputPaths& paths, const RunName& run);
  /// Gives the claim back, and removes the folders if they are empty: `.ingot-partial`, and the
  /// output if it was made here.
  ~Claim();
  Claim(Claim&& other) noexcept = default;
  Claim& operator=(Claim&&) = delete;
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

  /// Throws kMismatch when the claim is not this run's any more: somebody removed it.
  void require_held() const;
  [[nodiscard]] const OutputPaths& paths() const { return paths_; }
  /// False where the file system has no locks.
  [[nodiscard]] bool is_locked() const { return is_locked_; }

 private:
  explicit Claim(OutputPaths paths) : paths_(std::move(paths)) {}
  bool try_take(const RunName& run);

  OutputPaths paths_;
  bool made_output_ = false;
  bool is_locked_ = false;
  Fd file_;
};

}  // namespace ingot::convert
