#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "convert/plan/plan.h"
#include "convert/run/window_writer.h"
#include "formats/storage/block_scales.h"

namespace ingot::convert {

/// Time spent by all threads together in one stage, and what it moved.
struct StageTime {
  std::atomic<std::uint64_t> ns = 0, n_bytes = 0;
};
struct StageTimes {
  StageTime read, compute, hash;
};

/// Adds the time from construction to destruction to a stage.
class StageTimer {
 public:
  StageTimer(StageTime& stage, std::uint64_t n_bytes)
      : stage_(stage), begin_(std::chrono::steady_clock::now()) {
    stage_.n_bytes.fetch_add(n_bytes, std::memory_order_relaxed);
  }
  ~StageTimer() {
    const std::chrono::nanoseconds elapsed = std::chrono::steady_clock::now() - begin_;
    stage_.ns.fetch_add(static_cast<std::uint64_t>(elapsed.count()), std::memory_order_relaxed);
  }
  StageTimer(const StageTimer&) = delete;
  StageTimer& operator=(const StageTimer&) = delete;

 private:
  StageTime& stage_;
  std::chrono::steady_clock::time_point begin_;
};

/// What all threads of a run share.
struct RunContext {
  const Plan& plan;
  WindowWriter& writer;
  StageTimes times;
  std::atomic<std::uint64_t> done_bytes = 0;  ///< output bytes produced, for progress
  /// Called per band; throws kInterrupted when the user asked to stop.
  std::function<void()> check_stop;
  /// Global scales as first written, by tensor; for conversions back (docs/formats.md, "Global
  /// scales").
  std::map<std::string, formats::GlobalScale> original_globals;
};

}  // namespace ingot::convert
