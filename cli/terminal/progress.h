#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cli/terminal/resource_use.h"

namespace ingot::cli {

/// Progress of a long job on stderr, one phase after the other. Mode `auto`: on a terminal a bar
/// with rate and time left, as wide as the terminal has room; otherwise a line every 30 s;
/// `always`: the bar; `never`, and --quiet: no output. In every mode SIGUSR1 asks for a line. In a
/// call of the library the session's receiver is told instead.
/// Throws kInvalidArgument for any other mode.
class Progress {
 public:
  /// The unit that is counted.
  enum class Unit : std::uint8_t { kBytes, kSteps };

  Progress(std::string_view mode, std::string_view phase, Unit unit = Unit::kBytes);
  /// Leaves the terminal on a line of its own when the job failed.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// The next phase begins, unless it is the one that runs.
  void begin(std::string_view phase, Unit unit = Unit::kBytes);
  /// Bytes (or steps) of the phase done so far and in all. The amount of the first call was done
  /// before: it does not count in the rate. Safe from many threads; calls may come in any order.
  void update(std::uint64_t done, std::uint64_t total);
  /// Removes the bar; nothing is shown afterwards.
  void finish();
  /// A line for each phase: time, amount, rate, and the resource that limited it with so many
  /// threads. After finish(). Empty with mode `never`, --quiet, and for jobs of less than a second,
  /// unless the mode is `always`.
  [[nodiscard]] std::string summary(std::size_t threads) const;
  /// The line that names the limit of the longest phase, and the next ones, of a job that writes
  /// nothing. Empty when summary() is.
  [[nodiscard]] std::string limits(std::size_t threads) const;
  /// The shares in that line. Empty unless the mode is `always`: a document then holds no time.
  [[nodiscard]] std::vector<WorkShare> limit_shares(std::size_t threads) const;

 private:
  using Clock = std::chrono::steady_clock;
  enum class Style : std::uint8_t { kBar, kLines, kNone };
  struct Phase {
    std::string name;
    Unit unit = Unit::kBytes;
    ResourceUse use = {};  ///< until it ended: its use of resources
    std::uint64_t first = 0, done = 0, total = 0;
    bool has_first = false;

    [[nodiscard]] double fraction() const;
    [[nodiscard]] std::string amount(std::uint64_t n) const;
  };

  void watch(const std::stop_token& stop);
  void show();
  void end_phase();
  [[nodiscard]] bool is_worth_telling() const;
  [[nodiscard]] const Phase& longest() const;
  [[nodiscard]] std::vector<std::string> state() const;
  [[nodiscard]] std::string bar_text() const;

  Style style_;
  const std::function<void(std::string_view, std::uint64_t, std::uint64_t)> receiver_;
  bool is_asked_for_;
  mutable std::mutex mutex_;  // guards the members below
  Clock::time_point began_, shown_;
  ResourceUse used_;  // when the phase began
  ThreadWatch threads_;
  bool bar_is_drawn_ = false, is_finished_ = false;
  std::vector<Phase> phases_;
  std::condition_variable_any wake_;
  std::jthread watcher_;  // last: it uses everything above
};

}  // namespace ingot::cli
