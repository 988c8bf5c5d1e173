#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "convert/run/output_files.h"
#include "formats/base/aligned_buffer.h"

namespace ingot::convert {

/// Takes the bytes of an output: ranges of its files, in any order.
class ByteSink {
 public:
  /// A longer piece would not be in cache when it is hashed.
  static constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 20;

  virtual ~ByteSink() = default;

  /// Memory to fill.
  struct Lease {
    std::span<std::byte> bytes;
    std::uint32_t file = 0;
    std::uint64_t offset = 0;
  };
  /// Memory for the range [offset, offset + n_bytes) of a file, or for its beginning. May block, so
  /// that who calls this must hold no lease.
  virtual Lease acquire(std::uint32_t file, std::uint64_t offset, std::uint64_t n_bytes) = 0;
  /// The lease's bytes are in place; they belong to `item`.
  virtual void commit(const Lease& lease, std::uint32_t item) = 0;
  /// All ranges of `item` have been committed.
  virtual void finish_item(std::uint32_t /*item*/) {}
  /// The most bytes of a lease, and whether one lease can have so many bytes there: no limit,
  /// where the bytes go to no file.
  [[nodiscard]] virtual std::size_t window_bytes() const {
    return std::numeric_limits<std::size_t>::max();
  }
  [[nodiscard]] virtual bool is_in_one_window(std::uint64_t /*offset*/,
                                              std::uint64_t /*n_bytes*/) const {
    return true;
  }

  /// Fills a range of any length: calls fill(piece) for its consecutive pieces.
  template <typename Fill>
  void put(std::uint32_t file, std::uint64_t offset, std::uint64_t n_bytes, std::uint32_t item,
           const Fill& fill) {
    while (n_bytes > 0) {
      const Lease lease = acquire(file, offset, std::min(n_bytes, kMostBytes));
      fill(lease.bytes);
      commit(lease, item);
      offset += lease.bytes.size();
      n_bytes -= lease.bytes.size();
    }
  }
};

/// Time spent by all threads together in one stage, and the bytes it moved.
struct StageTime {
  std::atomic<std::uint64_t> ns = 0, n_bytes = 0;
};

/// Adds the time from construction to destruction to a stage.
class StageTimer {
 public:
  StageTimer(StageTime& stage, std::uint64_t n_bytes)
      : stage_(stage), begin_(std::chrono::steady_clock::now()) {
    stage_.n_bytes.fetch_add(n_bytes, std::memory_order_relaxed);
  }
  ~StageTimer() {
    const std::chrono::nanoseconds elapsed = std::chrono::steady_clock::now() - begin_;
    stage_.ns.fetch_add(static_cast<std::uint64_t>(elapsed.count()), std::memory_order_relaxed);
  }
  StageTimer(const StageTimer&) = delete;
  StageTimer& operator=(const StageTimer&) = delete;

 private:
  StageTime& stage_;
  std::chrono::steady_clock::time_point begin_;
};

/// Gathers disjoint byte ranges of many output files, produced in any order by several threads,
/// into aligned windows, and writes each window once: with O_DIRECT where the file system allows it
/// (twice as fast as `cp` + fsync, at almost no CPU), else buffered with write-behind.
///
/// A window is complete when as many bytes as it has were committed; the plan guarantees that
/// ranges are disjoint and cover the file. A thread that finds every buffer taken, or many windows
/// complete, writes one itself: as many write as the storage needs, and the others compute. When
/// none is on its way to disk, the window that was idle longest is spilled: its bytes are written
/// buffered, and its buffer freed. So any number of files works in any budget, and with any number
/// of them open.
///
/// Work is attributed to items; `durable` is called with items whose every byte has been written
/// and fdatasync'ed.
class WindowWriter final : public ByteSink {
 public:
  using File = OutputFiles::File;
  struct Options {
    std::size_t window_bytes = std::size_t{8} << 20;  ///< a multiple of 4096
    std::size_t max_windows = 16;  ///< windows in all, at least two per producing thread
    std::size_t writer_threads = 2;
    /// In complete windows, before a thread writes one itself rather than take memory that was
    /// never touched: more of them do not keep a disk busier.
    std::uint64_t most_waiting_bytes = std::uint64_t{128} << 20;
    bool direct = true;
    std::size_t max_open_files = 0;  ///< 0: OutputFiles::default_max_open()
    std::uint64_t sync_bytes = std::uint64_t{128}
                               << 20;  ///< fdatasync after so many bytes, at the latest ...
    std::chrono::milliseconds sync_interval{250};  ///< ... or so long after the last one
  };
  /// Items that have become durable, ascending. Called by one thread at a time.
  using DurableCallback = std::function<void(const std::vector<std::uint32_t>&)>;

  WindowWriter(StagedFiles& staged, std::vector<File> files, const Options& options,
               DurableCallback durable);
  ~WindowWriter() override;
  WindowWriter(const WindowWriter&) = delete;
  WindowWriter& operator=(const WindowWriter&) = delete;

  /// Marks a range as written by an earlier run. Before the first lease.
  void mark_written(std::uint32_t file, std::uint64_t offset, std::uint64_t n_bytes);

  /// A lease of one window. Blocks while no window is free; throws the first failure of a writer.
  Lease acquire(std::uint32_t file, std::uint64_t offset, std::uint64_t n_bytes) override;
  void commit(const Lease& lease, std::uint32_t item) override;
  [[nodiscard]] bool is_in_one_window(std::uint64_t offset, std::uint64_t n_bytes) const override {
    return offset % options_.window_bytes + n_bytes <= options_.window_bytes;
  }
  void finish_item(std::uint32_t item) override;

  /// Writes windows that wait, as long as there is one for this thread, which produces no more.
  void help() noexcept;
  /// Makes everything committed durable and closes the files. Every range must have been committed.
  void finish();
  /// Makes complete items durable and stops; for interruption. Never throws.
  void abandon() noexcept;

  [[nodiscard]] std::size_t window_bytes() const override { return options_.window_bytes; }
  /// Bytes and time of its writes.
  [[nodiscard]] const StageTime& written() const { return written_; }
  [[nodiscard]] bool uses_direct_io() const { return files_.uses_direct(); }
  [[nodiscard]] bool has_reserved() const { return files_.has_reserved(); }
  [[nodiscard]] std::uint64_t windows_spilled() const {
    return spilled_.load(std::memory_order_relaxed);
  }

 private:
  struct Window;
  struct Progress {
    std::uint64_t remaining = 0;  // bytes not yet written
    bool dirty = false;           // written since the last fdatasync
    unsigned writing = 0;         // windows being written, each by a thread
    std::list<Window*> complete;  // not yet being written
    bool is_ready = false;        // in ready_
  };
  using Key = std::pair<std::uint32_t, std::uint64_t>;

  Window& window_for(std::uint32_t file, std::uint64_t index);
  bool attach(Window& window);
  void make_buffers();
  void offer(std::uint32_t file);
  void wake(const Window& window);
  void set_idle(Window& window);
  void unset_idle(Window& window);
  bool evict_one(std::unique_lock<std::mutex>& lock);
  bool write_one(std::unique_lock<std::mutex>& lock);
  void write_window(Window& window);
  static void write_whole(const OutputFiles::Use& file, const Window& window);
  static void write_ranges(const OutputFiles::Use& file, Window& window);
  void write_out(std::unique_lock<std::mutex>& lock, Window& window);
  void complete_write(Window& window);
  void sync_if_due(bool force);
  void run_writer();
  void stop_threads();

  Options options_;
  DurableCallback durable_;
  OutputFiles files_;

  std::mutex mutex_;
  std::condition_variable freed_, queued_;
  std::vector<Progress> progress_;  // by file
  std::map<Key, std::unique_ptr<Window>> windows_;
  std::list<Window*> idle_;  // with a buffer that is neither filled nor written, the longest idle
                             // first
  std::vector<AlignedBuffer> memory_;
  std::vector<std::span<std::byte>> free_buffers_;  // of one window each
  std::size_t buffers_made_ = 0;
  std::size_t n_complete_ = 0;       // windows that wait to be written
  std::deque<std::uint32_t> ready_;  // files with such windows that one more thread may write into
  std::size_t writing_ = 0;
  std::map<std::uint32_t, std::uint32_t>
      open_items_;  // item -> windows not yet written, +1 while it produces
  std::vector<std::uint32_t> written_items_;
  std::exception_ptr failure_;
  bool stopping_ = false;

  std::mutex sync_mutex_;
  std::uint64_t synced_bytes_ = 0;
  std::chrono::steady_clock::time_point last_sync_;

  StageTime written_;
  std::atomic<std::uint64_t> spilled_ = 0;
  std::vector<std::jthread> threads_;
};

}  // namespace ingot::convert
