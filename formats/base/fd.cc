#include "formats/base/fd.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "formats/base/error.h"

namespace ingot {
namespace {

// Linux transfers at most 0x7ffff000 bytes per call; a round GiB keeps O_DIRECT alignment.
constexpr std::size_t kMaxTransfer = std::size_t{1} << 30;

constexpr std::int64_t kNsPerSecond = 1'000'000'000;

// Errors of file systems that lack a call: network and FUSE mounts report each of these.
bool means_unsupported(int number) {
  return number == EINVAL || number == EOPNOTSUPP || number == ENOSYS || number == EPERM ||
         number == ENOTTY;
}

int try_open(const std::filesystem::path& path, int flags) {
  return uninterrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0644); });
}

int open_or_throw(const std::filesystem::path& path, int flags, const char* purpose) {
  const int fd = try_open(path, flags);
  if (fd < 0) throw system_error(errno, purpose, path.string());
  return fd;
}

FileStamp stamp_from(const struct stat& info) {
  return {.device = info.st_dev,
          .inode = info.st_ino,
          .n_bytes = static_cast<std::uint64_t>(info.st_size),
          .modified_ns = info.st_mtim.tv_sec * kNsPerSecond + info.st_mtim.tv_nsec,
          .changed_ns = info.st_ctim.tv_sec * kNsPerSecond + info.st_ctim.tv_nsec,
          .n_links = info.st_nlink};
}

struct stat stat_or_throw(int fd, const std::string& path) {
  struct stat info {};
  if (uninterrupted([&] { return ::fstat(fd, &info); }) != 0)
    throw system_error(errno, "stat", path);
  return info;
}

// Returns 0, or the error of a file system without such writes.
int write_all(int fd, const std::string& path, std::span<const std::byte> bytes,
              std::uint64_t offset) {
  while (!bytes.empty()) {
    const std::size_t wanted = std::min(bytes.size(), kMaxTransfer);
    const ssize_t n = uninterrupted(
        [&] { return ::pwrite(fd, bytes.data(), wanted, static_cast<off_t>(offset)); });
    if (n < 0 && means_unsupported(errno)) return errno;
    if (n < 0) throw system_error(errno, "write", path).at_byte(offset);
    if (n == 0) throw system_error(ENOSPC, "write", path).at_byte(offset);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return 0;
}

}  // namespace

std::optional<FileStamp> stamp_of(const std::filesystem::path& path) {
  struct stat info {};
  if (uninterrupted([&] { return ::stat(path.c_str(), &info); }) == 0) return stamp_from(info);
  if (errno == ENOENT || errno == ENOTDIR) return std::nullopt;
  throw system_error(errno, "stat", path.string());
}

Fd::~Fd() {
  if (fd_ >= 0) ::close(fd_);
}

Fd::Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)) {}

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = std::exchange(other.fd_, -1);
    path_ = std::move(other.path_);
  }
  return *this;
}

Fd Fd::open_for_reading(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a FIFO must not hang before its kind is known.
  Fd file(open_or_throw(path, O_RDONLY | O_NONBLOCK, "open for reading"), path.string());
  if (!S_ISREG(stat_or_throw(file.fd_, file.path_).st_mode)) {
    throw Error(ErrorCode::kInvalidArgument, "is not a regular file").in_file(file.path_);
  }
  return file;
}

Fd Fd::open_for_writing(const std::filesystem::path& path, int flags) {
  return Fd(open_or_throw(path, flags, "open for writing"), path.string());
}

Fd Fd::open_direct(const std::filesystem::path& path) {
  const int fd = try_open(path, O_RDONLY | O_DIRECT);
  if (fd < 0 && !means_unsupported(errno)) throw system_error(errno, "open", path.string());
  return Fd(fd, path.string());
}

Fd Fd::open_directory(const std::filesystem::path& path) {
  return Fd(open_or_throw(path, O_RDONLY | O_DIRECTORY, "open directory"), path.string());
}

std::uint64_t Fd::size() const {
  return stamp().n_bytes;
}

FileStamp Fd::stamp() const {
  return stamp_from(stat_or_throw(fd_, path_));
}

LockState Fd::try_lock() const {
  if (uninterrupted([&] { return ::flock(fd_, LOCK_EX | LOCK_NB); }) == 0)
    return LockState::kLocked;
  if (errno == EWOULDBLOCK) return LockState::kHeldElsewhere;
  if (errno == ENOLCK || means_unsupported(errno)) return LockState::kUnsupported;
  throw system_error(errno, "lock", path_);
}

std::optional<std::size_t> Fd::read_direct(std::span<std::byte> out, std::uint64_t offset) const {
  const ssize_t n = uninterrupted(
      [&] { return ::pread(fd_, out.data(), out.size(), static_cast<off_t>(offset)); });
  if (n >= 0) return static_cast<std::size_t>(n);
  if (means_unsupported(errno)) return std::nullopt;
  throw system_error(errno, "read", path_).at_byte(offset);
}

void Fd::drop_cache() const {
  // Advice: a file system that does not take it reads from its cache.
  ::posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);
}

void Fd::read_exact(std::span<std::byte> out, std::uint64_t offset) const {
  while (!out.empty()) {
    const std::size_t wanted = std::min(out.size(), kMaxTransfer);
    const ssize_t n =
        uninterrupted([&] { return ::pread(fd_, out.data(), wanted, static_cast<off_t>(offset)); });
    if (n < 0) throw system_error(errno, "read", path_).at_byte(offset);
    if (n == 0) {
      throw Error(ErrorCode::kCorrupt, "file ends {} bytes early (truncated? fetch it again)",
                  out.size())
          .in_file(path_)
          .at_byte(offset);
    }
    out = out.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
}

void Fd::write_exact(std::span<const std::byte> bytes, std::uint64_t offset) const {
  if (const int number = write_all(fd_, path_, bytes, offset); number != 0)
    throw system_error(number, "write", path_).at_byte(offset);
}

bool Fd::write_direct(std::span<const std::byte> bytes, std::uint64_t offset) const {
  return write_all(fd_, path_, bytes, offset) == 0;
}

bool Fd::reserve(std::uint64_t size) const {
  if (size == 0) return true;
  // fallocate(2), never posix_fallocate: the latter writes zeros where the file system has no
  // support.
  const auto length = static_cast<off_t>(size);
  if (uninterrupted([&] { return ::fallocate(fd_, 0, 0, length); }) == 0) return true;
  if (!means_unsupported(errno)) throw system_error(errno, "reserve space", path_);
  truncate(size);
  return false;
}

void Fd::truncate(std::uint64_t size) const {
  if (uninterrupted([&] { return ::ftruncate(fd_, static_cast<off_t>(size)); }) != 0)
    throw system_error(errno, "set the size", path_);
}

void Fd::sync_data() const {
  if (uninterrupted([&] { return ::fdatasync(fd_); }) != 0)
    throw system_error(errno, "fdatasync", path_);
}

void Fd::sync() const {
  if (uninterrupted([&] { return ::fsync(fd_); }) != 0) throw system_error(errno, "fsync", path_);
}

void Fd::close() {
  if (fd_ < 0) return;
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0 && errno != EINTR) throw system_error(errno, "close", path_);
}

std::string read_text_file(const std::filesystem::path& path, std::uint64_t max_bytes) {
  const Fd file = Fd::open_for_reading(path);
  const std::uint64_t size = file.size();
  if (size > max_bytes) {
    throw Error(ErrorCode::kLimit, "is {} bytes long, at most {} are read", size, max_bytes)
        .in_file(file.path());
  }
  std::string text(size, '\0');
  file.read_exact(std::as_writable_bytes(std::span(text)), 0);
  return text;
}

void write_text_file(const std::filesystem::path& path, std::string_view text, Durable durable) {
  Fd file = Fd::open_for_writing(path, O_WRONLY | O_CREAT | O_TRUNC);
  file.write_exact(std::as_bytes(std::span(text)), 0);
  if (durable == Durable::kNow) file.sync();
  file.close();
}

void sync_file_system(const std::filesystem::path& path) {
  const Fd directory = Fd::open_directory(path);
  if (uninterrupted([&] { return ::syncfs(directory.get()); }) == 0) return;
  if (!means_unsupported(errno)) throw system_error(errno, "sync", path.string());
  ::sync();
}

bool sync_directory(const std::filesystem::path& path) {
  const int fd = try_open(path, O_RDONLY | O_DIRECTORY);
  if (fd < 0 && errno == EACCES) return false;
  if (fd < 0) throw system_error(errno, "open directory", path.string());
  const int result = uninterrupted([&] { return ::fsync(fd); });
  const int number = errno;
  ::close(fd);
  if (result != 0 && !means_unsupported(number)) throw system_error(number, "fsync", path.string());
  return result == 0;
}

bool link_file(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (uninterrupted([&] { return ::link(from.c_str(), to.c_str()); }) == 0) return true;
  if (means_unsupported(errno) || errno == EMLINK || errno == EXDEV) return false;
  throw system_error(errno, "link", to.string());
}

void rename_file(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (uninterrupted([&] { return ::rename(from.c_str(), to.c_str()); }) != 0) {
    throw system_error(errno, fmt::format("rename to {}", to.string()), from.string());
  }
}

}  // namespace ingot
