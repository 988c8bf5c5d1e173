#pragma once

#include <ctime>

namespace ingot::testing {

/// Seconds that this thread computes in `action`, however busy the machine is: for claims that time
/// grows with the length of a text and not with its square.
template <typename Action>
double cpu_seconds(const Action& action) {
  const auto now = [] {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double begin = now();
  action();
  return now() - begin;
}

}  // namespace ingot::testing
