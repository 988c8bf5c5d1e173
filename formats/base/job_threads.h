#pragma once

#include <cstddef>
#include <functional>

namespace ingot {

/// Called by loops over bytes, about every megabyte; throws kInterrupted when the job is to end.
using CheckStop = std::function<void()>;

/// How loops over the bytes of a job run.
struct JobThreads {
  std::size_t n = 1;
  CheckStop check_stop = [] {};
};

}  // namespace ingot
