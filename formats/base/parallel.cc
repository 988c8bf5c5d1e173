#include "formats/base/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <future>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include <sched.h>

#ifndef INGOT_THREADS_STD
#include <oneapi/tbb/blocked_range.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>
#endif

#include "formats/base/error.h"
#include "formats/base/stop_scope.h"

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

#ifndef INGOT_THREADS_STD
// An arena of so many threads, for the loops of the calling thread: a new one for each loop costs
// more than a small loop does, and many of them keep oneTBB's workers from work.
oneapi::tbb::task_arena& arena_of(std::size_t threads) {
  thread_local std::map<std::size_t, oneapi::tbb::task_arena> arenas;
  // More than the machine has gains nothing here and makes oneTBB print a warning.
  const std::size_t n = std::min(threads, available_processors());
  return arenas.try_emplace(n, static_cast<int>(n)).first->second;
}
#endif

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
  const StopScope::Transfer stop;
  const auto guarded = [&](std::size_t i) {
    if (failure.failed()) return;
    try {
      const StopScope::Transfer::Guard entered(stop);
      StopScope::check();
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
    arena_of(threads).execute([&] {
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
  const StopScope::Transfer stop;
  {
    // No thread begins before all are there: a job that cannot have all its threads fails at once.
    std::promise<bool> all_there;
    const std::shared_future<bool> may_begin = all_there.get_future().share();
    std::vector<std::jthread> pool;
    try {
      for (std::size_t worker = 0; worker < workers; ++worker) {
        pool.emplace_back([&failure, &body, &stop, may_begin, worker] {
          if (!may_begin.get()) return;
          try {
            const StopScope::Transfer::Guard entered(stop);
            body(worker);
          } catch (...) {
            failure.keep(worker, std::current_exception());
          }
        });
      }
    } catch (const std::system_error& refused) {
      all_there.set_value(false);
      throw Error(ErrorCode::kLimit, "cannot start thread {} of {}: {} (lower --threads)",
                  pool.size() + 1, workers, refused.code().message());
    } catch (...) {
      all_there.set_value(false);
      throw;
    }
    all_there.set_value(true);
  }
  failure.rethrow();
}

}  // namespace ingot
