#pragma once

#include <cstddef>
#include <cstdint>

#include "convert/plan/plan.h"

namespace ingot::convert {

/// Memory that executing a plan takes at most, and how it is divided.
struct MemoryPlan {
  std::uint64_t fixed_bytes = 0;   ///< program, tables
  std::uint64_t worker_bytes = 0;  ///< read and band buffers of all threads
  /// The bytes that each thread may keep of a fused set, between its two passes, or of another
  /// tensor (Plan::reread); what exceeds them is read again.
  std::uint64_t kept_bytes = 0;
  std::uint64_t n_read_twice = 0, bytes_read_twice = 0;  ///< sets read twice, and their bytes
  std::uint64_t factor_bytes = 0;                        ///< factors of moments, of all threads
  std::uint64_t threads = 0;                             ///< threads that convert at once
  std::uint64_t window_bytes = 0;                        ///< one window of an output file
  std::uint64_t n_windows = 0;
  std::uint64_t files_at_once = 1;  ///< output files that are written at the same time
  [[nodiscard]] std::uint64_t peak() const {
    return fixed_bytes + worker_bytes + factor_bytes + threads * kept_bytes +
           window_bytes * n_windows;
  }
};

/// Divides the budget among `most_threads`, or as many as it holds. Throws kLimit, naming the least
/// that would do, when it is too small for one.
MemoryPlan plan_memory(const Plan& plan, std::size_t most_threads, std::uint64_t mem_limit);

}  // namespace ingot::convert
