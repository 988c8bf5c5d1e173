#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace ingot::testing {

/// Decides which thread goes on. While one lives, its thread and all that this one starts run one
/// at a time. Each lock, wait, start and end of a thread, and each read, write or sync of a file is
/// a point at which another thread may go on. The seed draws who; so an order that shows a fault is
/// repeated by its seed. Time is drawn as well. See thread_order.cc.
class ThreadOrder {
 public:
  struct Options {
    std::uint64_t seed = 0;
    /// The process ends at this point, counted from 1, as by a power cut: each write that was not
    /// synced is lost or not. 0: it does not.
    std::uint64_t cut_at = 0;
    /// The write or sync that returns EIO, counted from 1. 0: none does.
    std::uint64_t fail_at = 0;
    /// Files take direct writes, so that several threads write into one. Else the file system is
    /// the one that there is.
    bool direct_io = false;
  };

  explicit ThreadOrder(const Options& options);
  /// All other threads must have ended.
  ~ThreadOrder();
  ThreadOrder(const ThreadOrder&) = delete;
  ThreadOrder& operator=(const ThreadOrder&) = delete;

  [[nodiscard]] std::uint64_t n_points() const { return n_points_; }
  /// Writes and syncs so far.
  [[nodiscard]] std::uint64_t n_changes() const { return n_changes_; }
  /// The call that Options::fail_at made fail, and its file; empty until then.
  [[nodiscard]] const std::string& failed() const { return failed_; }
  /// A hash of who went on at each point.
  [[nodiscard]] std::uint64_t trace() const { return trace_; }
  /// True if a sync followed each write into this range.
  [[nodiscard]] bool is_synced(const std::filesystem::path& file, std::uint64_t offset,
                               std::uint64_t n_bytes) const;

  /// The exit status of a process that a power cut ended.
  static constexpr int kCut = 99;

 private:
  friend struct Points;
  struct Thread;
  using Inode = std::pair<std::uint64_t, std::uint64_t>;
  struct Unsynced {
    int fd = -1;                                                  // of its own
    std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;  // offset, bytes
  };

  std::uint64_t draw(std::uint64_t below) { return random_() % below; }
  Thread& add_thread();
  void point();
  void wait(const void* what, const std::uint64_t* deadline_ns);
  void wake_all(const void* what);
  void wake_one(const void* what);
  void go_on();
  void forget_synced(const Inode* file);
  [[noreturn]] void cut();

  Options options_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::uint64_t switch_once_in_ = 1;
  std::uint64_t now_ns_ = 1'000'000'000'000;
  std::uint64_t n_points_ = 0, n_changes_ = 0, trace_ = 0;
  std::string failed_;
  std::map<Inode, Unsynced> unsynced_;
};

/// Runs `action` in a process of its own, in the order of `options`. True if the power cut came
/// before its end. Failures and errors of the action fail the test.
bool is_cut(const ThreadOrder::Options& options, const std::function<void()>& action);

}  // namespace ingot::testing
