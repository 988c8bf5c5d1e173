#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace ingot {

/// An owned file descriptor. Every failure throws with the path and the system's words.
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
  /// Opens a directory, to fsync it.
  static Fd open_directory(const std::filesystem::path& path);

  [[nodiscard]] bool valid() const { return fd_ >= 0; }
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::uint64_t size() const;

  /// Fills `out` from `offset`; end of file first is kCorrupt ("truncated").
  void read_exact(std::span<std::byte> out, std::uint64_t offset) const;
  /// Writes all of `bytes` at `offset`, over short writes and interruptions.
  void write_exact(std::span<const std::byte> bytes, std::uint64_t offset) const;
  /// write_exact through a descriptor opened with O_DIRECT, from aligned memory at an aligned
  /// offset. False, with an undefined part written, when the file system refuses such writes after
  /// all (EINVAL): write buffered then.
  [[nodiscard]] bool write_direct(std::span<const std::byte> bytes, std::uint64_t offset) const;
  /// Reserves [0, size) on disk where the file system can, else sets the length. kNoSpace when it
  /// does not fit.
  void reserve(std::uint64_t size) const;
  void truncate(std::uint64_t size) const;
  void sync_data() const;
  void sync() const;
  void close();

 private:
  Fd(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  int fd_ = -1;
  std::string path_;
};

/// The whole file as text, refused with kLimit beyond `max_bytes`.
std::string read_text_file(const std::filesystem::path& path, std::uint64_t max_bytes);

/// When what was written is on disk: at once, or when the caller syncs, many files at a time.
enum class Durable : std::uint8_t { kNow, kLater };

/// Writes `text` to `path` (create or replace, write, and fsync unless that is left to the caller).
void write_text_file(const std::filesystem::path& path, std::string_view text,
                     Durable durable = Durable::kNow);

/// syncfs(2): everything written so far to the file system of `path` is on disk afterwards, however
/// many files it went to.
void sync_file_system(const std::filesystem::path& path);

/// fsync of a directory, so that renames inside it survive a crash.
void sync_directory(const std::filesystem::path& path);

/// rename(2) with an Error on failure.
void rename_file(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace ingot
