#include "formats/base/fd.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "formats/base/error.h"

namespace ingot {
namespace {

// Linux transfers at most 0x7ffff000 bytes per call; a round GiB keeps O_DIRECT alignment.
constexpr std::size_t kMaxTransfer = std::size_t{1} << 30;

int open_or_throw(const std::filesystem::path& path, int flags, const char* purpose) {
  int fd = -1;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC, 0644);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) throw system_error(errno, purpose, path.string());
  return fd;
}

}  // namespace

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
  // O_NONBLOCK: opening a FIFO must not hang before we can see what it is.
  Fd file(open_or_throw(path, O_RDONLY | O_NONBLOCK, "open for reading"), path.string());
  struct stat info {};
  if (::fstat(file.fd_, &info) != 0) throw system_error(errno, "stat", file.path_);
  if (!S_ISREG(info.st_mode)) {
    throw Error(ErrorCode::kInvalidArgument, "is not a regular file").in_file(file.path_);
  }
  return file;
}

Fd Fd::open_for_writing(const std::filesystem::path& path, int flags) {
  return Fd(open_or_throw(path, flags, "open for writing"), path.string());
}

Fd Fd::open_directory(const std::filesystem::path& path) {
  return Fd(open_or_throw(path, O_RDONLY | O_DIRECTORY, "open directory"), path.string());
}

std::uint64_t Fd::size() const {
  struct stat info {};
  if (::fstat(fd_, &info) != 0) throw system_error(errno, "stat", path_);
  return static_cast<std::uint64_t>(info.st_size);
}

void Fd::read_exact(std::span<std::byte> out, std::uint64_t offset) const {
  while (!out.empty()) {
    const std::size_t wanted = std::min(out.size(), kMaxTransfer);
    const ssize_t n = ::pread(fd_, out.data(), wanted, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw system_error(errno, "read", path_).at_byte(offset);
    if (n == 0) {
      throw Error(ErrorCode::kCorrupt,
                  fmt::format("file ends {} bytes early (truncated? fetch it again)", out.size()))
          .in_file(path_)
          .at_byte(offset);
    }
    out = out.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
}

void Fd::write_exact(std::span<const std::byte> bytes, std::uint64_t offset) const {
  if (!write_direct(bytes, offset)) throw system_error(EINVAL, "write", path_).at_byte(offset);
}

bool Fd::write_direct(std::span<const std::byte> bytes, std::uint64_t offset) const {
  while (!bytes.empty()) {
    const std::size_t wanted = std::min(bytes.size(), kMaxTransfer);
    const ssize_t n = ::pwrite(fd_, bytes.data(), wanted, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EINVAL) return false;
    if (n < 0) throw system_error(errno, "write", path_).at_byte(offset);
    if (n == 0) throw system_error(ENOSPC, "write", path_).at_byte(offset);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return true;
}

void Fd::reserve(std::uint64_t size) const {
  if (size == 0) return;
  // fallocate(2), never posix_fallocate: the latter writes zeros where the file system has no
  // support.
  if (::fallocate(fd_, 0, 0, static_cast<off_t>(size)) == 0) return;
  if (errno != EOPNOTSUPP && errno != ENOSYS) throw system_error(errno, "reserve space", path_);
  truncate(size);
}

void Fd::truncate(std::uint64_t size) const {
  if (::ftruncate(fd_, static_cast<off_t>(size)) != 0)
    throw system_error(errno, "set the size", path_);
}

void Fd::sync_data() const {
  if (::fdatasync(fd_) != 0) throw system_error(errno, "fdatasync", path_);
}

void Fd::sync() const {
  if (::fsync(fd_) != 0) throw system_error(errno, "fsync", path_);
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
    throw Error(ErrorCode::kLimit,
                fmt::format("is {} bytes long, at most {} are read", size, max_bytes))
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
  if (::syncfs(directory.get()) != 0) throw system_error(errno, "sync", path.string());
}

void sync_directory(const std::filesystem::path& path) {
  Fd::open_directory(path).sync();
}

void rename_file(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    throw system_error(errno, fmt::format("rename to {}", to.string()), from.string());
  }
}

}  // namespace ingot
