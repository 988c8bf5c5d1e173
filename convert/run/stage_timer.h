#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace ingot::convert {

/// Time spent by all threads together, per stage, and what it moved.
struct StageTimes {
  std::atomic<std::uint64_t> read_ns = 0, compute_ns = 0, hash_ns = 0;
  std::atomic<std::uint64_t> read_bytes = 0, compute_bytes = 0, hash_bytes = 0;
};

/// Adds the time from construction to destruction to a stage.
class StageTimer {
 public:
  StageTimer(std::atomic<std::uint64_t>& ns, std::atomic<std::uint64_t>& bytes,
             std::uint64_t n_bytes)
      : ns_(ns), begin_(std::chrono::steady_clock::now()) {
    bytes.fetch_add(n_bytes, std::memory_order_relaxed);
  }
  ~StageTimer() {
    const auto elapsed = std::chrono::steady_clock::now() - begin_;
    ns_.fetch_add(static_cast<std::uint64_t>(
                      std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed).count()),
                  std::memory_order_relaxed);
  }
  StageTimer(const StageTimer&) = delete;
  StageTimer& operator=(const StageTimer&) = delete;

 private:
  std::atomic<std::uint64_t>& ns_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace ingot::convert
