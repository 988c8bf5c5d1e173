#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

namespace ingot::cli {

/// Progress of a long job on stderr. Mode `auto`: a bar with rate and time left on a terminal,
/// otherwise a line every 30 s; `always`: the bar; `never`: nothing. Throws kInvalidArgument for
/// any other mode.
class Progress {
 public:
  /// What is counted.
  enum class Unit : std::uint8_t { kBytes, kSteps };

  Progress(std::string_view mode, std::string_view what, Unit unit = Unit::kBytes);
  /// Leaves the terminal on a line of its own when the job failed.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Bytes (or steps) done so far and in all. What the first call reports as done was done before:
  /// it does not count in the rate. Safe from many threads; calls may come in any order.
  void update(std::uint64_t done, std::uint64_t total);
  /// Removes the bar; nothing is shown afterwards.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  enum class Style : std::uint8_t { kBar, kLines, kNone };

  [[nodiscard]] double fraction_done() const;
  [[nodiscard]] std::string state_text() const;
  [[nodiscard]] std::string bar_text() const;

  Style style_;
  Unit unit_;
  std::string what_;
  std::mutex mutex_;
  Clock::time_point began_, shown_;
  bool has_first_ = false, bar_is_drawn_ = false;
  std::uint64_t first_ = 0, done_ = 0, total_ = 0;
  double elapsed_seconds_ = 0;
};

}  // namespace ingot::cli
