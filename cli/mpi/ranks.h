#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string_view>
#include <vector>

#include "inference/parallel/mpi_module.h"

namespace ingot::cli {

/// When the processes of a launcher (mpirun, or srun with PMIx) work as one.
enum class MpiUse : std::uint8_t {
  kAuto,    ///< automatic: where the launcher's environment is there
  kAlways,  ///< always, whichever launcher has started the process
  kNever,   ///< each process works by itself
};

/// Throws kInvalidArgument for a word that is none of auto, always, never.
MpiUse parse_mpi_use(std::string_view word);

/// True if this process is to look for others.
bool is_launched(MpiUse use);

/// The processes of one launch, of which this one is a rank. Rank 0 leads: it hears how far the
/// others are and what their exit codes are, and tells them the common one.
class Ranks {
 public:
  /// Loads the module, starts MPI and waits for all ranks. `words`: the settings of this process.
  /// Throws kUnsupported when the module, or MPI, cannot be loaded, and kInvalidArgument on rank 0
  /// when ranks have different arguments.
  explicit Ranks(std::string_view words);
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  /// For other exchanges of ranks: by one thread, while no other one tells.
  [[nodiscard]] const inference::MpiModule& module() const { return *module_; }
  [[nodiscard]] std::uint32_t rank() const { return rank_; }
  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(last_.size()); }

  /// How far this rank is, safe from many threads. Rank 0 shows the sum over all ranks, as far as
  /// it knows.
  void tell(std::uint64_t done, std::uint64_t total);
  /// Called on rank 0 with the sums, by one thread at a time.
  std::function<void(std::uint64_t done, std::uint64_t total)> show;

  /// Ends this rank's part of the work. Rank 0: waits for all others and returns the worst exit
  /// code. Others: return the code of all, when rank 0 has told it with end(). Throws kInterrupted
  /// when this process is to stop.
  int gather(int code);
  /// Rank 0 tells the code of all. Every rank leaves MPI; the object is of no use afterwards.
  void end(int code);

 private:
  struct Last {
    std::uint64_t done = 0, total = 0;
    bool is_here = false, has_ended = false;
    int code = 0;
  };

  void hear();
  void take(std::uint32_t from, const inference::RankMessage& message);
  void send(std::uint32_t to, const inference::RankMessage& message);
  void send_to_others(const inference::RankMessage& message);
  void wait_until(const std::function<bool()>& is_so);

  const inference::MpiModule* module_ = nullptr;
  std::uint32_t rank_ = 0;
  std::uint64_t words_;  // hash of what the user of this rank said
  std::mutex mutex_;     // guards the members below, and every call of the module
  std::vector<Last> last_;
};

/// Where this process is a rank that has not ended: ends all ranks with this exit code, as the last
/// thing before the process ends with it. Does nothing otherwise.
void end_all_ranks(int code);

}  // namespace ingot::cli
