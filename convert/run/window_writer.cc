#include "convert/run/window_writer.h"

#include <algorithm>

#include <fcntl.h>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "formats/base/stop_scope.h"

namespace ingot::convert {
namespace {

constexpr std::uint64_t kDirectAlignment = 4096;
// Small windows share their memory, for the sake of huge pages.
constexpr std::size_t kAllocationBytes = std::size_t{2} << 20;
// Disks make the writes of many files durable in little more time than those of one.
constexpr std::size_t kSyncThreads = 8;

}  // namespace

// The map entry lives from the first byte until the window is written, over any number of buffers.
struct WindowWriter::Window {
  Key key;
  std::uint64_t start = 0;   // in the file
  std::uint64_t length = 0;  // shorter at the end of the file
  std::uint64_t filled = 0;  // bytes committed in all, earlier buffers and runs included
  bool partial = false;      // some bytes are on disk already: write ranges, not the whole
  bool busy = false;         // queued or being written
  unsigned pins = 0;
  unsigned n_waiting = 0;       // threads that want memory of it
  std::span<std::byte> buffer;  // empty without one
  bool is_idle = false;         // has a buffer, no pins, not busy
  std::list<Window*>::iterator idle;
  std::vector<std::pair<std::uint64_t, std::uint64_t>>
      ranges;                        // committed into this buffer: (offset, bytes)
  std::vector<std::uint32_t> items;  // with bytes in this buffer
};

WindowWriter::WindowWriter(StagedFiles& staged, std::vector<File> files, const Options& options,
                           DurableCallback durable)
    : options_(options),
      durable_(std::move(durable)),
      files_(staged, std::move(files), options.direct, options.max_open_files),
      last_sync_(std::chrono::steady_clock::now()) {
  INGOT_CHECK(options_.window_bytes % kDirectAlignment == 0 && options_.max_windows >= 2);
  for (std::uint32_t file = 0; file < files_.count(); ++file)
    progress_.push_back({.remaining = files_.n_bytes(file)});
  try {
    const StopScope::Transfer stop;
    for (std::size_t i = 0; i < options_.writer_threads; ++i) {
      threads_.emplace_back([this, stop] {
        const StopScope::Transfer::Guard entered(stop);
        run_writer();
      });
    }
  } catch (...) {
    // Threads that were started wait for windows: they are stopped and joined.
    stop_threads();
    throw;
  }
}

WindowWriter::~WindowWriter() {
  stop_threads();
}

void WindowWriter::mark_written(std::uint32_t file, std::uint64_t offset, std::uint64_t n_bytes) {
  const std::lock_guard lock(mutex_);
  progress_[file].remaining -= n_bytes;
  while (n_bytes > 0) {
    Window& window = window_for(file, offset / options_.window_bytes);
    const std::uint64_t n = std::min(n_bytes, window.start + window.length - offset);
    window.filled += n;
    window.partial = true;
    if (window.filled == window.length) windows_.erase(window.key);
    offset += n;
    n_bytes -= n;
  }
}

WindowWriter::Window& WindowWriter::window_for(std::uint32_t file, std::uint64_t index) {
  auto& slot = windows_[{file, index}];
  if (!slot) {
    slot = std::make_unique<Window>();
    slot->key = {file, index};
    slot->start = index * options_.window_bytes;
    slot->length =
        std::min<std::uint64_t>(options_.window_bytes, files_.n_bytes(file) - slot->start);
  }
  return *slot;
}

void WindowWriter::set_idle(Window& window) {
  window.idle = idle_.insert(idle_.end(), &window);
  window.is_idle = true;
}

void WindowWriter::unset_idle(Window& window) {
  if (window.is_idle) idle_.erase(window.idle);
  window.is_idle = false;
}

void WindowWriter::make_buffers() {
  const std::size_t n = std::clamp<std::size_t>(kAllocationBytes / options_.window_bytes, 1,
                                                options_.max_windows - buffers_made_);
  const std::span<std::byte> memory = memory_.emplace_back(n * options_.window_bytes).span();
  for (std::size_t i = 0; i < n; ++i) {
    free_buffers_.push_back(memory.subspan(i * options_.window_bytes, options_.window_bytes));
  }
  buffers_made_ += n;
}

// Gives a window memory, if there is any to give.
bool WindowWriter::attach(Window& window) {
  if (!window.buffer.empty()) return true;
  if (free_buffers_.empty() && buffers_made_ < options_.max_windows) {
    const bool must_write = n_complete_ * options_.window_bytes >= options_.most_waiting_bytes;
    if (!must_write || ready_.empty()) make_buffers();
  }
  if (free_buffers_.empty()) return false;
  window.buffer = free_buffers_.back();
  free_buffers_.pop_back();
  return true;
}

WindowWriter::Lease WindowWriter::acquire(std::uint32_t file, std::uint64_t offset,
                                          std::uint64_t n_bytes) {
  INGOT_CHECK(n_bytes > 0 && offset + n_bytes <= files_.n_bytes(file));
  std::unique_lock lock(mutex_);
  // It lives as long as these bytes are missing.
  Window& window = window_for(file, offset / options_.window_bytes);
  while (window.busy || !attach(window)) {
    if (failure_) std::rethrow_exception(failure_);
    if (write_one(lock) || evict_one(lock)) continue;
    ++window.n_waiting;
    freed_.wait(lock);
    --window.n_waiting;
  }
  if (failure_) std::rethrow_exception(failure_);
  ++window.pins;
  unset_idle(window);
  if (!free_buffers_.empty() || !ready_.empty() || window.n_waiting > 0) wake(window);
  const std::uint64_t begin = offset - window.start;
  const std::uint64_t n = std::min(n_bytes, window.length - begin);
  return {.bytes = window.buffer.subspan(begin, n), .file = file, .offset = offset};
}

// One thread that waits has something to do now; where some want this very window, they have.
void WindowWriter::wake(const Window& window) {
  window.n_waiting > 0 ? freed_.notify_all() : freed_.notify_one();
}

void WindowWriter::commit(const Lease& lease, std::uint32_t item) {
  const std::lock_guard lock(mutex_);
  open_items_.try_emplace(item, 1);
  Window& window = window_for(lease.file, lease.offset / options_.window_bytes);
  if (std::find(window.items.rbegin(), window.items.rend(), item) == window.items.rend()) {
    window.items.push_back(item);
    ++open_items_[item];
  }
  const std::uint64_t begin = lease.offset - window.start;
  const std::uint64_t n = lease.bytes.size();
  if (!window.ranges.empty() && window.ranges.back().first + window.ranges.back().second == begin) {
    window.ranges.back().second += n;
  } else {
    window.ranges.emplace_back(begin, n);
  }
  window.filled += n;
  INGOT_CHECK(window.filled <= window.length);
  --window.pins;
  if (window.filled == window.length) {
    window.busy = true;
    progress_[lease.file].complete.push_back(&window);
    ++n_complete_;
    offer(lease.file);
  } else if (window.pins == 0) {
    set_idle(window);
  }
  wake(window);
}

void WindowWriter::finish_item(std::uint32_t item) {
  const std::lock_guard lock(mutex_);
  const auto [entry, added] = open_items_.try_emplace(item, 1);
  if (--entry->second == 0) {
    open_items_.erase(entry);
    written_items_.push_back(item);
  }
}

// Lets a thread write a complete window of a file, if there is one: kernels let one thread into a
// file at a time, and others spin. Direct writes of one file may overlap. Files take turns, so that
// no thread searches the windows that wait, which are thousands where many threads make them.
void WindowWriter::offer(std::uint32_t file) {
  Progress& progress = progress_[file];
  if (progress.is_ready || progress.complete.empty()) return;
  if (progress.writing > 0 && !files_.uses_direct()) return;
  progress.is_ready = true;
  ready_.push_back(file);
  queued_.notify_one();
}

bool WindowWriter::write_one(std::unique_lock<std::mutex>& lock) {
  if (ready_.empty()) return false;
  Progress& file = progress_[ready_.front()];
  ready_.pop_front();
  file.is_ready = false;
  Window* window = file.complete.front();
  file.complete.pop_front();
  --n_complete_;
  write_out(lock, *window);
  return true;
}

// Frees the buffer that was idle longest by writing its bytes. False when the caller must wait
// instead: a buffer is on its way to disk, or all are being filled.
bool WindowWriter::evict_one(std::unique_lock<std::mutex>& lock) {
  if (writing_ > 0 || idle_.empty()) return false;
  Window* victim = idle_.front();
  unset_idle(*victim);
  victim->partial = true;
  victim->busy = true;
  spilled_.fetch_add(1, std::memory_order_relaxed);
  write_out(lock, *victim);
  return true;
}

// Without the lock meanwhile.
void WindowWriter::write_out(std::unique_lock<std::mutex>& lock, Window& window) {
  const std::uint32_t file = window.key.first;
  ++writing_;
  ++progress_[file].writing;
  offer(file);
  lock.unlock();
  std::exception_ptr failure;
  try {
    write_window(window);
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  --writing_;
  --progress_[file].writing;
  window.busy = false;
  offer(file);
  if (stopping_) queued_.notify_all();
  if (failure) {
    if (!failure_) failure_ = failure;
    freed_.notify_all();
    std::rethrow_exception(failure);
  }
  complete_write(window);
}

void WindowWriter::write_window(Window& window) {
  const StageTimer timer(written_, 0);
  const OutputFiles::Use file = files_.use(window.key.first);
  if (window.partial) {
    write_ranges(file, window);
  } else {
    write_whole(file, window);
  }
}

void WindowWriter::write_whole(const OutputFiles::Use& file, const Window& window) {
  std::span<const std::byte> bytes = window.buffer.first(window.length);
  std::uint64_t offset = window.start;
  if (file.direct().valid()) {
    const std::size_t whole = round_down(bytes.size(), kDirectAlignment);
    if (file.direct().write_direct(bytes.first(whole), offset)) {
      bytes = bytes.subspan(whole);
      offset += whole;
    }
  }
  if (bytes.empty()) return;
  file.buffered().write_exact(bytes, offset);
  // Write-behind: the kernel starts on these pages now, so that dirty memory stays bounded.
  ::sync_file_range(file.buffered().get(), static_cast<off_t>(offset),
                    static_cast<off_t>(bytes.size()), SYNC_FILE_RANGE_WRITE);
}

void WindowWriter::write_ranges(const OutputFiles::Use& file, Window& window) {
  std::sort(window.ranges.begin(), window.ranges.end());
  for (const auto& [offset, n_bytes] : window.ranges)
    file.buffered().write_exact(window.buffer.subspan(offset, n_bytes), window.start + offset);
  ::sync_file_range(file.buffered().get(), static_cast<off_t>(window.start),
                    static_cast<off_t>(window.length), SYNC_FILE_RANGE_WRITE);
}

// Under the lock, after a write: accounts for the bytes, frees the buffer, counts down the items.
void WindowWriter::complete_write(Window& window) {
  Progress& file = progress_[window.key.first];
  std::uint64_t n_bytes = 0;
  for (const auto& range : window.ranges) n_bytes += range.second;
  written_.n_bytes.fetch_add(n_bytes, std::memory_order_relaxed);
  file.remaining -= n_bytes;
  file.dirty = true;
  free_buffers_.push_back(std::exchange(window.buffer, {}));
  for (const std::uint32_t item : window.items) {
    const auto entry = open_items_.find(item);
    if (--entry->second == 0) {
      open_items_.erase(entry);
      written_items_.push_back(item);
    }
  }
  window.items.clear();
  window.ranges.clear();
  wake(window);
  if (window.filled == window.length) windows_.erase(window.key);
}

void WindowWriter::run_writer() {
  std::unique_lock lock(mutex_);
  while (true) {
    try {
      if (!write_one(lock)) {
        if (stopping_ && n_complete_ == 0) return;
        queued_.wait(lock);
        continue;
      }
      lock.unlock();
      sync_if_due(false);
      lock.lock();
    } catch (...) {
      if (!lock.owns_lock()) lock.lock();
      if (!failure_) failure_ = std::current_exception();
      freed_.notify_all();
      return;
    }
  }
}

// Durability in batches: writes before the fdatasync are on disk after it, and only then reported.
void WindowWriter::sync_if_due(bool force) {
  std::unique_lock sync_lock(sync_mutex_, std::defer_lock);
  if (force) {
    sync_lock.lock();
  } else if (!sync_lock.try_lock()) {
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  if (!force && written_.n_bytes - synced_bytes_ < options_.sync_bytes &&
      now - last_sync_ < options_.sync_interval) {
    return;
  }
  std::vector<std::uint32_t> items;
  std::vector<std::uint32_t> dirty, complete;
  {
    const std::lock_guard lock(mutex_);
    // The system reports lost bytes only once: later syncs would succeed without them.
    if (failure_) return;
    synced_bytes_ = written_.n_bytes;
    items.swap(written_items_);
    for (std::uint32_t file = 0; file < progress_.size(); ++file) {
      if (!progress_[file].dirty) continue;
      progress_[file].dirty = false;
      dirty.push_back(file);
      if (progress_[file].remaining == 0) complete.push_back(file);
    }
  }
  try {
    std::atomic<std::size_t> next = 0;
    run_workers(std::min(dirty.size(), kSyncThreads), [&](std::size_t) {
      for (std::size_t i = next++; i < dirty.size(); i = next++) files_.sync_data(dirty[i]);
    });
    for (const std::uint32_t file : complete) files_.close(file);
    last_sync_ = std::chrono::steady_clock::now();
    std::sort(items.begin(), items.end());
    if (!items.empty()) durable_(items);
  } catch (...) {
    // Before another thread may sync.
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::current_exception();
    throw;
  }
}

void WindowWriter::stop_threads() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  queued_.notify_all();
  threads_.clear();
}

void WindowWriter::help() noexcept {
  std::unique_lock lock(mutex_);
  try {
    while (!failure_ && write_one(lock)) continue;
  } catch (...) {
    // It is failure_ now, which finish() throws.
  }
}

void WindowWriter::finish() {
  {
    std::unique_lock lock(mutex_);
    freed_.wait(lock, [&] { return failure_ || (n_complete_ == 0 && writing_ == 0); });
    if (failure_) std::rethrow_exception(failure_);
    INGOT_CHECK(open_items_.empty());
  }
  stop_threads();
  // A thread may have failed to sync what it wrote last.
  if (failure_) std::rethrow_exception(failure_);
  sync_if_due(true);
  for (const Progress& file : progress_) INGOT_CHECK(file.remaining == 0);
}

void WindowWriter::abandon() noexcept {
  try {
    stop_threads();
    if (!failure_) sync_if_due(true);
  } catch (...) {
    // Writes that could not be made durable are not in the journal and will be done again.
  }
}

}  // namespace ingot::convert
