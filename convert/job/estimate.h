#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

#include "convert/plan/plan.h"

namespace ingot::convert {

/// One of the things that a conversion does all the time, at the rate that was measured.
struct WorkEstimate {
  std::uint64_t n_bytes = 0;  ///< bytes of the work; for computing: values
  double per_second = 0;      ///< bytes (or values) per second; 0: not measured
  bool is_past_cache = true;  ///< the disk was measured, not memory
  [[nodiscard]] double seconds() const {
    return per_second > 0 ? static_cast<double>(n_bytes) / per_second : 0;
  }
};

/// How long a conversion will take.
struct TimeEstimate {
  WorkEstimate reading, writing, computing;
  bool has_one_disk = false;  ///< source and output share it: reading and writing add up

  /// The three go on side by side, so that the slowest decides.
  [[nodiscard]] double seconds() const;
  /// Both disks were measured.
  [[nodiscard]] bool is_complete() const {
    return reading.per_second > 0 && writing.per_second > 0;
  }
  [[nodiscard]] const char* limit() const;  ///< "reading", "writing" or "computing"
};

/// Returns the seconds for which each of so many threads tries a pair of schemes: all that time for
/// one or two of them, so much less for more that together they compute no longer than two.
double trial_seconds(std::size_t threads, double at_most);

/// Measures for about `seconds`, or for as long as the plan's work takes, and scales up by the
/// plan: reads of the largest weights file and writes to a file without a name next to the output,
/// both past the page cache where the file system can, and the kernels of the plan's pairs of
/// schemes on made-up values, on all threads, each for trial_seconds. Nothing stays on the disk. A
/// rate that cannot be measured is 0. The figures of a second are not those of an hour: caches of
/// disks and clouds, and other jobs, show later.
TimeEstimate estimate_time(const Plan& plan, const std::filesystem::path& output,
                           std::size_t threads, double seconds = 1);

}  // namespace ingot::convert
