#include "convert/window_writer.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/statfs.h>

#include "formats/base/checked.h"
#include "formats/base/error.h"

namespace ingot::convert {
namespace {

constexpr std::uint64_t kDirectAlignment = 4096;
constexpr long kTmpfsMagic = 0x01021994;

// Reserving blocks pays on a disk; in tmpfs it only touches the memory twice.
bool is_tmpfs(const std::filesystem::path& directory) {
  struct statfs info {};
  return ::statfs(directory.c_str(), &info) == 0 && static_cast<long>(info.f_type) == kTmpfsMagic;
}

}  // namespace

struct WindowWriter::OutputFile {
  std::string name;
  std::uint64_t n_bytes = 0;
  std::uint64_t remaining = 0;  // bytes not yet written
  bool opened = false;
  bool dirty = false;  // written since the last fdatasync
  Fd buffered, direct;
  std::mutex open_mutex;
};

// The map entry lives from the first byte until the window is written, over any number of buffers.
struct WindowWriter::Window {
  Key key;
  std::uint64_t start = 0;   // in the file
  std::uint64_t length = 0;  // shorter at the end of the file
  std::uint64_t filled = 0;  // bytes committed in all, earlier buffers and runs included
  bool partial = false;      // some bytes are on disk already: write ranges, not the whole
  bool busy = false;         // queued or being written
  unsigned pins = 0;
  std::uint64_t last_use = 0;
  AlignedBuffer buffer;
  std::vector<std::pair<std::uint64_t, std::uint64_t>>
      ranges;                        // committed into this buffer: (offset, bytes)
  std::vector<std::uint32_t> items;  // with bytes in this buffer
};

WindowWriter::WindowWriter(std::filesystem::path directory, std::vector<File> files,
                           const Options& options, DurableCallback durable)
    : directory_(std::move(directory)),
      options_(options),
      durable_(std::move(durable)),
      last_sync_(std::chrono::steady_clock::now()) {
  INGOT_CHECK(options_.window_bytes % kDirectAlignment == 0 && options_.max_windows >= 2);
  for (File& file : files) {
    auto output = std::make_unique<OutputFile>();
    output->name = std::move(file.name);
    output->n_bytes = output->remaining = file.n_bytes;
    files_.push_back(std::move(output));
  }
  for (std::size_t i = 0; i < options_.writer_threads; ++i)
    threads_.emplace_back([this] { run_writer(); });
}

WindowWriter::~WindowWriter() {
  stop_threads();
}

void WindowWriter::mark_written(std::uint32_t file, std::uint64_t offset, std::uint64_t n_bytes) {
  const std::lock_guard lock(mutex_);
  files_[file]->remaining -= n_bytes;
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
        std::min<std::uint64_t>(options_.window_bytes, files_[file]->n_bytes - slot->start);
  }
  return *slot;
}

// Gives a window memory, if there is any to give.
bool WindowWriter::attach(Window& window) {
  if (window.buffer.data() != nullptr) return true;
  // Counts as a use: otherwise the search for a second buffer would take this one back, for ever.
  window.last_use = ++clock_;
  if (!free_buffers_.empty()) {
    window.buffer = std::move(free_buffers_.back());
    free_buffers_.pop_back();
    return true;
  }
  if (buffers_made_ < options_.max_windows) {
    window.buffer = AlignedBuffer(options_.window_bytes);
    ++buffers_made_;
    return true;
  }
  return false;
}

void WindowWriter::Lease::fill(std::span<const std::byte> bytes) const {
  for (std::size_t i = 0; i < n_pieces; ++i) {
    INGOT_CHECK(pieces[i].size() <= bytes.size());
    std::memcpy(pieces[i].data(), bytes.data(), pieces[i].size());
    bytes = bytes.subspan(pieces[i].size());
  }
}

WindowWriter::Lease WindowWriter::acquire(std::uint32_t file, std::uint64_t offset,
                                          std::uint64_t n_bytes) {
  INGOT_CHECK(n_bytes > 0 && n_bytes <= options_.window_bytes &&
              offset + n_bytes <= files_[file]->n_bytes);
  const std::uint64_t first = offset / options_.window_bytes;
  const std::uint64_t last = (offset + n_bytes - 1) / options_.window_bytes;
  std::unique_lock lock(mutex_);
  while (true) {
    if (failure_) std::rethrow_exception(failure_);
    // Both windows or none: a thread that waits must hold no memory.
    bool ready = true;
    for (std::uint64_t index = first; index <= last && ready; ++index) {
      Window& window = window_for(file, index);
      ready = !window.busy && attach(window);
    }
    if (ready) break;
    if (!evict_one(lock)) freed_.wait(lock);
  }
  Lease lease{.pieces = {}, .n_pieces = 0, .file = file, .offset = offset};
  for (std::uint64_t index = first; index <= last; ++index) {
    Window& window = window_for(file, index);
    const std::uint64_t begin = std::max(offset, window.start);
    const std::uint64_t end = std::min(offset + n_bytes, window.start + window.length);
    ++window.pins;
    window.last_use = ++clock_;
    lease.pieces[lease.n_pieces++] =
        window.buffer.span().subspan(begin - window.start, end - begin);
  }
  return lease;
}

void WindowWriter::commit(const Lease& lease, std::uint32_t item) {
  const std::lock_guard lock(mutex_);
  open_items_.try_emplace(item, 1);
  std::uint64_t offset = lease.offset;
  for (std::size_t i = 0; i < lease.n_pieces; ++i) {
    Window& window = window_for(lease.file, offset / options_.window_bytes);
    const std::uint64_t n = lease.pieces[i].size();
    if (std::find(window.items.rbegin(), window.items.rend(), item) == window.items.rend()) {
      window.items.push_back(item);
      ++open_items_[item];
    }
    if (!window.ranges.empty() &&
        window.ranges.back().first + window.ranges.back().second == offset - window.start) {
      window.ranges.back().second += n;
    } else {
      window.ranges.emplace_back(offset - window.start, n);
    }
    window.filled += n;
    INGOT_CHECK(window.filled <= window.length);
    --window.pins;
    if (window.filled == window.length) {
      window.busy = true;
      queue_.push_back(&window);
      queued_.notify_one();
    }
    offset += n;
  }
  freed_.notify_all();
}

void WindowWriter::finish_item(std::uint32_t item) {
  const std::lock_guard lock(mutex_);
  const auto [entry, added] = open_items_.try_emplace(item, 1);
  if (--entry->second == 0) {
    open_items_.erase(entry);
    written_items_.push_back(item);
  }
}

// Frees the buffer that was idle longest by writing what it holds. False when the caller must wait
// instead: a buffer is on its way to disk, or all are being filled.
bool WindowWriter::evict_one(std::unique_lock<std::mutex>& lock) {
  if (!queue_.empty() || writing_ > 0 || buffers_made_ < options_.max_windows) return false;
  Window* victim = nullptr;
  for (const auto& [key, window] : windows_) {
    if (window->buffer.data() == nullptr || window->busy || window->pins > 0) continue;
    if (victim == nullptr || window->last_use < victim->last_use) victim = window.get();
  }
  if (victim == nullptr) return false;
  if (victim->ranges.empty()) {
    // Taken for a lease that needed a second window and did not get it: nothing to write.
    free_buffers_.push_back(std::move(victim->buffer));
    return true;
  }
  victim->partial = true;
  victim->busy = true;
  ++writing_;
  spilled_.fetch_add(1, std::memory_order_relaxed);
  lock.unlock();
  try {
    write_window(*victim);
  } catch (...) {
    lock.lock();
    --writing_;
    victim->busy = false;
    if (!failure_) failure_ = std::current_exception();
    freed_.notify_all();
    throw;
  }
  lock.lock();
  complete_write(lock, *victim);
  return true;
}

void WindowWriter::open_file(OutputFile& file) {
  const std::lock_guard lock(file.open_mutex);
  if (file.opened) return;
  const std::filesystem::path path = directory_ / file.name;
  file.buffered = Fd::open_for_writing(path, O_RDWR | O_CREAT);
  if (!is_tmpfs(directory_)) {
    file.buffered.reserve(file.n_bytes);
    if (options_.direct) {
      try {
        file.direct = Fd::open_for_writing(path, O_RDWR | O_DIRECT);
        direct_used_.store(true, std::memory_order_relaxed);
      } catch (const Error&) {
        // The file system has no direct I/O; buffered writes serve.
        file.direct = Fd();
      }
    }
  }
  // A file that a crash could take out of its folder is not durable, whatever was synced into it.
  sync_directory(directory_);
  file.opened = true;
}

void WindowWriter::write_window(Window& window) {
  const auto begin = std::chrono::steady_clock::now();
  OutputFile& file = *files_[window.key.first];
  open_file(file);
  if (window.partial) {
    write_ranges(window);
  } else {
    std::span<const std::byte> bytes = window.buffer.span().first(window.length);
    std::uint64_t offset = window.start;
    if (file.direct.valid()) {
      const std::size_t whole = round_down(bytes.size(), kDirectAlignment);
      if (file.direct.write_direct(bytes.first(whole), offset)) {
        bytes = bytes.subspan(whole);
        offset += whole;
      }
    }
    if (!bytes.empty()) {
      file.buffered.write_exact(bytes, offset);
      // Write-behind: the kernel starts on these pages now, so that dirty memory stays bounded.
      ::sync_file_range(file.buffered.get(), static_cast<off_t>(offset),
                        static_cast<off_t>(bytes.size()), SYNC_FILE_RANGE_WRITE);
    }
  }
  const auto elapsed = std::chrono::steady_clock::now() - begin;
  write_ns_.fetch_add(static_cast<std::uint64_t>(
                          std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed).count()),
                      std::memory_order_relaxed);
}

void WindowWriter::write_ranges(Window& window) {
  OutputFile& file = *files_[window.key.first];
  std::sort(window.ranges.begin(), window.ranges.end());
  for (const auto& [offset, n_bytes] : window.ranges) {
    file.buffered.write_exact(window.buffer.span().subspan(offset, n_bytes), window.start + offset);
  }
  ::sync_file_range(file.buffered.get(), static_cast<off_t>(window.start),
                    static_cast<off_t>(window.length), SYNC_FILE_RANGE_WRITE);
}

// Under the lock, after a write: accounts for the bytes, frees the buffer, counts down the items.
void WindowWriter::complete_write(std::unique_lock<std::mutex>& lock, Window& window) {
  INGOT_CHECK(lock.owns_lock());
  OutputFile& file = *files_[window.key.first];
  std::uint64_t n_bytes = 0;
  for (const auto& range : window.ranges) n_bytes += range.second;
  bytes_written_.fetch_add(n_bytes, std::memory_order_relaxed);
  file.remaining -= n_bytes;
  file.dirty = true;
  free_buffers_.push_back(std::move(window.buffer));
  for (const std::uint32_t item : window.items) {
    const auto entry = open_items_.find(item);
    if (--entry->second == 0) {
      open_items_.erase(entry);
      written_items_.push_back(item);
    }
  }
  window.items.clear();
  window.ranges.clear();
  window.busy = false;
  --writing_;
  if (window.filled == window.length) windows_.erase(window.key);
  freed_.notify_all();
}

void WindowWriter::run_writer() {
  std::unique_lock lock(mutex_);
  while (true) {
    queued_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Window* window = queue_.front();
    queue_.pop_front();
    ++writing_;
    lock.unlock();
    try {
      write_window(*window);
      lock.lock();
      complete_write(lock, *window);
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

// Durability in batches: what was written before the fdatasync is on disk after it, and only then
// reported.
void WindowWriter::sync_if_due(bool force) {
  std::unique_lock sync_lock(sync_mutex_, std::defer_lock);
  if (force) {
    sync_lock.lock();
  } else if (!sync_lock.try_lock()) {
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  if (!force && bytes_written() - synced_bytes_ < options_.sync_bytes &&
      now - last_sync_ < options_.sync_interval) {
    return;
  }
  std::vector<std::uint32_t> items;
  std::vector<OutputFile*> dirty, complete;
  {
    const std::lock_guard lock(mutex_);
    synced_bytes_ = bytes_written();
    items.swap(written_items_);
    for (const auto& file : files_) {
      if (!file->dirty) continue;
      file->dirty = false;
      dirty.push_back(file.get());
      if (file->remaining == 0) complete.push_back(file.get());
    }
  }
  for (OutputFile* file : dirty) file->buffered.sync_data();
  for (OutputFile* file : complete) {
    file->direct.close();
    file->buffered.close();
  }
  last_sync_ = std::chrono::steady_clock::now();
  std::sort(items.begin(), items.end());
  if (!items.empty()) durable_(items);
}

void WindowWriter::stop_threads() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  queued_.notify_all();
  threads_.clear();
}

void WindowWriter::finish() {
  {
    std::unique_lock lock(mutex_);
    freed_.wait(lock, [&] { return failure_ || (queue_.empty() && writing_ == 0); });
    if (failure_) std::rethrow_exception(failure_);
    INGOT_CHECK(open_items_.empty());
  }
  stop_threads();
  sync_if_due(true);
  for (const auto& file : files_) INGOT_CHECK(file->remaining == 0);
}

void WindowWriter::abandon() noexcept {
  try {
    stop_threads();
    if (!failure_) sync_if_due(true);
  } catch (...) {
    // What could not be made durable is not in the journal and will be done again.
  }
}

double WindowWriter::write_seconds() const {
  return static_cast<double>(write_ns_.load()) * 1e-9;
}

}  // namespace ingot::convert
