#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "convert/plan/plan.h"

namespace ingot::convert {

/// One unit of a job: a header of an output file, or an item: the tensors of it that are not done.
struct Task {
  bool is_header = false;
  std::uint32_t file = 0;
  std::vector<std::uint32_t> tensors;
};

/// Items in plan order, of which the tensors in `done` are left out; each file's header before the
/// first item that starts in it.
std::vector<Task> make_tasks(const Plan& plan, const std::vector<char>& done);

/// Hands tasks out in order. After a failure no new ones start, but those begun earlier finish, so
/// that the failure reported is the first in plan order whatever the threads did.
class TaskQueue {
 public:
  explicit TaskQueue(std::vector<Task> tasks) : tasks_(std::move(tasks)) {}

  std::optional<std::pair<std::size_t, Task>> next() {
    // Once taken, a task is run: only then have all tasks before a failed one been given their
    // chance to fail.
    if (failed_.load(std::memory_order_relaxed)) return std::nullopt;
    const std::size_t index = next_.fetch_add(1, std::memory_order_relaxed);
    if (index >= tasks_.size()) return std::nullopt;
    return std::pair(index, tasks_[index]);
  }

  void fail(std::size_t index, std::exception_ptr failure) {
    const std::lock_guard lock(mutex_);
    if (!failure_ || index < failed_index_) {
      failed_index_ = index;
      failure_ = std::move(failure);
    }
    failed_.store(true, std::memory_order_relaxed);
  }

  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }
  [[nodiscard]] bool failed() const { return failed_.load(std::memory_order_relaxed); }

 private:
  std::vector<Task> tasks_;
  std::atomic<std::size_t> next_ = 0;
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;
  std::size_t failed_index_ = 0;
  std::exception_ptr failure_;
};

}  // namespace ingot::convert
