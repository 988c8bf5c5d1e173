#include "convert/run/output_files.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/statfs.h>

#include "formats/base/error.h"

namespace ingot::convert {
namespace {

constexpr long kTmpfsMagic = 0x01021994;

// The most files that CheckpointFiles keeps open.
constexpr std::size_t kMaxSourceFiles = 256;
// More do not make anything faster.
constexpr std::size_t kMaxOpen = 4096;
constexpr std::size_t kMinOpen = 2;

// Reserving blocks pays on a disk; in tmpfs it only touches the memory twice.
bool is_tmpfs(const std::filesystem::path& directory) {
  struct statfs info {};
  return ::statfs(directory.c_str(), &info) == 0 && static_cast<long>(info.f_type) == kTmpfsMagic;
}

}  // namespace

OutputFiles::OutputFiles(StagedFiles& staged, std::vector<File> files, bool direct,
                         std::size_t max_open)
    : staged_(staged),
      directory_(staged.directory()),
      direct_(direct),
      max_open_(max_open == 0 ? default_max_open() : max_open) {
  for (File& file : files) {
    INGOT_CHECK(std::filesystem::path(file.name).is_relative());
    Slot& slot = slots_.emplace_back();
    slot.name = std::move(file.name);
    slot.n_bytes = file.n_bytes;
  }
}

std::size_t OutputFiles::default_max_open() {
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kMinOpen;
  const auto all = static_cast<std::size_t>(std::min<rlim_t>(limit.rlim_cur, 1U << 20));
  const std::size_t left = all - std::min(all / 2, kMaxSourceFiles);
  return std::clamp(left / 4, kMinOpen, kMaxOpen);
}

// Folders, relative to the directory, are synced once, made or found: an earlier run may have been
// killed in between. A second thread waits for the first.
void OutputFiles::prepare_folders(const std::filesystem::path& folder) {
  if (folder.empty()) return;
  const std::lock_guard lock(folders_mutex_);
  if (folders_.contains(folder)) return;
  const std::filesystem::path whole = directory_ / folder;
  std::error_code failure;
  std::filesystem::create_directories(whole, failure);
  if (failure) throw system_error(failure.value(), "create the folder", whole.string());
  for (auto below = folder; !below.empty(); below = below.parent_path())
    sync_directory(directory_ / below.parent_path());
  folders_.insert(folder);
}

// Without the lock, by the one thread that moved the slot to kOpening.
void OutputFiles::open(Slot& slot) {
  const std::filesystem::path path = directory_ / slot.name;
  if (!slot.was_open) prepare_folders(std::filesystem::path(slot.name).parent_path());
  slot.buffered = slot.was_open ? staged_.reopen(slot.name, 0) : staged_.open(slot.name);
  const bool on_disk = slot.was_open || !is_tmpfs(directory_);
  if (!slot.was_open && on_disk && !slot.buffered.reserve(slot.n_bytes)) has_reserved_ = false;
  if (slot.was_open ? slot.has_direct : direct_ && on_disk) {
    try {
      slot.direct = staged_.reopen(slot.name, O_DIRECT);
      slot.has_direct = true;
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kMismatch) throw;
      // The file system has no direct I/O; buffered writes serve.
      slot.direct = Fd();
    }
  }
  // A file that a crash could take out of its folder is not durable, whatever was synced into it.
  if (!slot.was_open) sync_directory(path.parent_path());
  slot.was_open = true;
}

void OutputFiles::close_idle(Slot& slot) {
  idle_.erase(slot.idle);
  slot.state = Slot::State::kClosed;
  --n_open_;
  slot.direct.close();
  slot.buffered.close();
}

OutputFiles::Use OutputFiles::use(std::uint32_t file) {
  Slot& slot = slots_[file];
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return slot.state == Slot::State::kOpen ||
           (slot.state == Slot::State::kClosed && (n_open_ < max_open_ || !idle_.empty()));
  });
  if (slot.state == Slot::State::kClosed) {
    // Bytes that were written through a descriptor that is closed here are made durable through the
    // next one, and the system keeps an error of writing for it.
    if (n_open_ >= max_open_) close_idle(slots_[idle_.front()]);
    slot.state = Slot::State::kOpening;
    ++n_open_;
    lock.unlock();
    try {
      open(slot);
    } catch (...) {
      slot.direct = Fd();
      slot.buffered = Fd();
      lock.lock();
      slot.state = Slot::State::kClosed;
      --n_open_;
      changed_.notify_all();
      throw;
    }
    lock.lock();
    if (slot.direct.valid()) direct_used_ = true;
    slot.state = Slot::State::kOpen;
    slot.idle = idle_.insert(idle_.end(), file);
    changed_.notify_all();
  }
  if (slot.users++ == 0) idle_.erase(slot.idle);
  return {*this, file};
}

OutputFiles::Use::~Use() {
  const std::lock_guard lock(files_.mutex_);
  Slot& slot = files_.slots_[file_];
  if (--slot.users > 0) return;
  slot.idle = files_.idle_.insert(files_.idle_.end(), file_);
  files_.changed_.notify_all();
}

void OutputFiles::sync_data(std::uint32_t file) {
  use(file).buffered().sync_data();
}

void OutputFiles::close(std::uint32_t file) {
  const std::lock_guard lock(mutex_);
  Slot& slot = slots_[file];
  if (slot.state != Slot::State::kOpen) return;
  INGOT_CHECK(slot.users == 0);
  close_idle(slot);
  changed_.notify_all();
}

}  // namespace ingot::convert
