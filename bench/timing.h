#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <ctime>
#include <vector>

namespace ingot::bench {

/// Seconds of the wall, or of this process' processors divided by the threads at work: on a busy
/// host the latter says more, though others still take memory bandwidth.
struct Clock {
  bool processors = false;
  std::size_t threads = 1;

  [[nodiscard]] double now() const {
    if (processors)
      return static_cast<double>(std::clock()) / CLOCKS_PER_SEC / static_cast<double>(threads);
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

template <typename Action>
double seconds_of(const Clock& clock, const Action& action) {
  const double begin = clock.now();
  action();
  return clock.now() - begin;
}

/// The upper one of two in the middle.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace ingot::bench
