#include "formats/base/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include <sched.h>

#ifndef INGOT_THREADS_STD
#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>
#endif

namespace ingot {
namespace {

// Keeps the failure of the lowest index, whatever the order of arrival.
class FirstFailure {
 public:
  void keep(std::size_t index, std::exception_ptr failure) {
    const std::lock_guard lock(mutex_);
    if (!failure_ || index < index_) {
      index_ = index;
      failure_ = std::move(failure);
    }
    failed_.store(true, std::memory_order_relaxed);
  }
  [[nodiscard]] bool failed() const { return failed_.load(std::memory_order_relaxed); }
  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  std::mutex mutex_;
  std::atomic<bool> failed_ = false;
  std::size_t index_ = 0;
  std::exception_ptr failure_;
};

}  // namespace

std::size_t available_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) {
    return static_cast<std::size_t>(std::max(1, CPU_COUNT(&set)));
  }
  return std::max(1U, std::thread::hardware_concurrency());
}

void parallel_for(std::size_t count, std::size_t threads,
                  const std::function<void(std::size_t)>& body) {
  FirstFailure failure;
  const auto guarded = [&](std::size_t i) {
    if (failure.failed()) return;
    try {
      body(i);
    } catch (...) {
      failure.keep(i, std::current_exception());
    }
  };
  threads = std::min(std::max<std::size_t>(threads, 1), count);
  if (threads <= 1) {
    for (std::size_t i = 0; i < count; ++i) guarded(i);
  } else {
#ifdef INGOT_THREADS_STD
    std::atomic<std::size_t> next = 0;
    std::vector<std::jthread> pool;
    for (std::size_t t = 0; t < threads; ++t) {
      pool.emplace_back([&] {
        for (std::size_t i = next++; i < count; i = next++) guarded(i);
      });
    }
    pool.clear();
#else
    // More than the machine has gains nothing here and makes oneTBB print a warning.
    oneapi::tbb::task_arena arena(static_cast<int>(std::min(threads, available_processors())));
    arena.execute([&] {
      oneapi::tbb::parallel_for(oneapi::tbb::blocked_range<std::size_t>(0, count, 1),
                                [&](const oneapi::tbb::blocked_range<std::size_t>& range) {
                                  for (std::size_t i = range.begin(); i != range.end(); ++i)
                                    guarded(i);
                                });
    });
#endif
  }
  failure.rethrow();
}

void run_workers(std::size_t workers, const std::function<void(std::size_t)>& body) {
  FirstFailure failure;
  {
    std::vector<std::jthread> pool;
    for (std::size_t worker = 0; worker < workers; ++worker) {
      pool.emplace_back([&, worker] {
        try {
          body(worker);
        } catch (...) {
          failure.keep(worker, std::current_exception());
        }
      });
    }
  }
  failure.rethrow();
}

}  // namespace ingot
