#pragma once

#include <cstddef>
#include <functional>

namespace ingot {

/// Number of processors this process may run on; at least 1.
std::size_t available_processors();

/// Calls body(i) for every i in [0, count) on at most `threads` threads, for work that computes and
/// rarely waits. Every call is made unless one throws; of several failures the one with the lowest
/// index among those that ran is rethrown. Runs on oneTBB (std::jthread when built with
/// INGOT_THREADS_STD).
void parallel_for(std::size_t count, std::size_t threads,
                  const std::function<void(std::size_t)>& body);

/// Runs body(worker) on `workers` threads of their own, for loops that block on I/O. All are
/// joined; the failure of the lowest worker index is rethrown. The body must itself notice when
/// another worker failed. Throws kLimit, before any body runs, when the system has no such thread.
void run_workers(std::size_t workers, const std::function<void(std::size_t)>& body);

}  // namespace ingot
