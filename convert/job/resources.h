#pragma once

#include <cstddef>
#include <cstdint>

#include "convert/plan/plan.h"

namespace ingot::convert {

/// Memory that executing a plan takes at most, and how it is divided.
struct MemoryPlan {
  std::uint64_t fixed_bytes = 0;   ///< program, tables
  std::uint64_t worker_bytes = 0;  ///< read and band buffers of all threads
  /// What each thread may keep of a group between its two passes; larger groups are read twice.
  std::uint64_t group_bytes = 0;
  std::uint64_t n_read_twice = 0, bytes_read_twice = 0;  ///< groups that are, and their codes
  std::uint64_t threads = 0;
  std::uint64_t window_bytes = 0;  ///< one window of an output file
  std::uint64_t n_windows = 0;
  [[nodiscard]] std::uint64_t peak() const {
    return fixed_bytes + worker_bytes + threads * group_bytes + window_bytes * n_windows;
  }
};

/// Divides the budget. Throws kLimit, naming the least that would do, when it is too small.
MemoryPlan plan_memory(const Plan& plan, const formats::TensorSource& source, std::size_t threads,
                       std::uint64_t mem_limit);

/// Bytes of all weights files as they lie on the disk: files of several ranks once, or once per
/// rank without links. Exact.
std::uint64_t bytes_on_disk(const Plan& plan);

/// The same with a copy for each rank in any case.
std::uint64_t copied_bytes(const Plan& plan);

/// An upper bound of everything beside them: indices, records, manifests, configs, side files.
std::uint64_t side_bytes(const Plan& plan, const formats::Checkpoint& source);

/// Disk that the output needs at its peak: the two together; with consume_source, source files that
/// are deleted on the way count back.
std::uint64_t peak_disk_bytes(const Plan& plan, const formats::Checkpoint& source,
                              bool consume_source);

}  // namespace ingot::convert
