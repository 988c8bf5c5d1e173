#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

namespace ingot {

/// The one place where a system call that a signal interrupted is made again.
template <typename Call>
auto uninterrupted(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

/// Tells whether a file was replaced (another device or inode) or written to (another size or time
/// of modification).
struct FileStamp {
  std::uint64_t device = 0, inode = 0, n_bytes = 0;
  std::int64_t modified_ns = 0;
  std::int64_t changed_ns = 0;  ///< time of the last change of anything, which no program sets
  std::uint64_t n_links = 0;
  friend bool operator==(const FileStamp& a, const FileStamp& b) {
    return a.is_same_file(b) && a.n_bytes == b.n_bytes && a.modified_ns == b.modified_ns;
  }
  /// True unless it was written to since, also by a program that put the time back; a further link
  /// changes nothing.
  [[nodiscard]] bool is_unwritten(const FileStamp& now) const {
    return *this == now && (changed_ns == now.changed_ns || n_links != now.n_links);
  }
  [[nodiscard]] bool is_same_file(const FileStamp& other) const {
    return device == other.device && inode == other.inode;
  }
};

/// The stamp of a path's target; nullopt when it leads nowhere.
std::optional<FileStamp> stamp_of(const std::filesystem::path& path);

/// Result of a request for a lock.
enum class LockState : std::uint8_t { kLocked, kHeldElsewhere, kUnsupported };

class Folder;

/// An owned file descriptor. Every failure throws with the path and the system's words; calls that
/// a signal interrupts are made again.
class Fd {
 public:
  Fd() = default;
  ~Fd();
  Fd(Fd&& other) noexcept;
  Fd& operator=(Fd&& other) noexcept;
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;

  /// Opens a regular file for reading; refuses directories, devices and sockets.
  static Fd open_for_reading(const std::filesystem::path& path);
  /// Opens for writing with the given open(2) flags (O_CREAT and so on), mode 0644.
  static Fd open_for_writing(const std::filesystem::path& path, int flags);
  /// Opens for reads past the page cache (O_DIRECT): aligned memory at aligned offsets. An invalid
  /// Fd where the file system has none.
  static Fd open_direct(const std::filesystem::path& path);
  /// Opens a directory, to fsync it.
  static Fd open_directory(const std::filesystem::path& path);

  [[nodiscard]] bool valid() const { return fd_ >= 0; }
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::uint64_t size() const;
  [[nodiscard]] FileStamp stamp() const;
  /// Takes the exclusive lock of the file (flock), which ends with the last descriptor of this
  /// opening, at the latest with the process.
  [[nodiscard]] LockState try_lock() const;

  /// Reads as much as one call gives; less than `out` at the end of the file. nullopt when the file
  /// system refuses direct I/O after all.
  [[nodiscard]] std::optional<std::size_t> read_direct(std::span<std::byte> out,
                                                       std::uint64_t offset) const;
  /// Asks the system to drop cached pages of the file, so that the next read goes to the disk.
  /// Written data must be synced before.
  void drop_cache() const;
  /// Fills `out` from `offset`; end of file first is kCorrupt ("truncated").
  void read_exact(std::span<std::byte> out, std::uint64_t offset) const;
  /// Writes all of `bytes` at `offset`, over short writes and interruptions.
  void write_exact(std::span<const std::byte> bytes, std::uint64_t offset) const;
  /// write_exact through a descriptor opened with O_DIRECT, from aligned memory at an aligned
  /// offset. False, with an undefined part written, when the file system refuses such writes after
  /// all: write buffered then.
  [[nodiscard]] bool write_direct(std::span<const std::byte> bytes, std::uint64_t offset) const;
  /// Reserves [0, size) on disk, or sets the length and returns false where the file system cannot
  /// reserve. kNoSpace when it does not fit.
  bool reserve(std::uint64_t size) const;
  void truncate(std::uint64_t size) const;
  void sync_data() const;
  void sync() const;
  void close();

 private:
  friend class Folder;
  Fd(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  int fd_ = -1;
  std::string path_;
};

/// The whole file as text, refused with kLimit beyond `max_bytes`.
std::string read_text_file(const std::filesystem::path& path, std::uint64_t max_bytes);

/// The time when written bytes are on disk: at once, or when the caller syncs, many files at a
/// time.
enum class Durable : std::uint8_t { kNow, kLater };

/// Writes `text` to `path` (create or replace, write, and fsync unless that is left to the caller).
void write_text_file(const std::filesystem::path& path, std::string_view text,
                     Durable durable = Durable::kNow);

/// syncfs(2): everything written so far to the file system of `path` is on disk afterwards, however
/// many files it went to.
void sync_file_system(const std::filesystem::path& path);

/// fsync of a directory, so that renames inside it survive a crash. False where the file system (a
/// network or FUSE mount), or a folder that may not be read, does not let us.
bool sync_directory(const std::filesystem::path& path);

/// link(2). False where the file system has no hard links, or no more of this file.
[[nodiscard]] bool link_file(const std::filesystem::path& from, const std::filesystem::path& to);

/// rename(2) with an Error on failure.
void rename_file(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace ingot
