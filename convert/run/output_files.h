#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <list>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "convert/output/staged_files.h"
#include "formats/base/fd.h"

namespace ingot::convert {

/// The files of an output, opened for writing on first use. At most so many are kept open, so an
/// output may have more files than the process may open: the one that was idle longest is closed,
/// and opened again when it is needed. Safe from many threads.
class OutputFiles {
 public:
  struct File {
    std::string name;  ///< under the directory of the output, maybe in folders of its own
    std::uint64_t n_bytes = 0;
  };

  /// `direct`: with O_DIRECT in addition to the buffered descriptor, where the file system has it.
  /// `max_open` files, 0 for default_max_open().
  OutputFiles(StagedFiles& staged, std::vector<File> files, bool direct, std::size_t max_open);
  OutputFiles(const OutputFiles&) = delete;
  OutputFiles& operator=(const OutputFiles&) = delete;

  /// Files that RLIMIT_NOFILE leaves to an output when the source has its half (CheckpointFiles)
  /// and journals and logs theirs. A file takes two descriptors.
  static std::size_t default_max_open();

  /// Keeps a file open. A thread holds one at a time.
  class Use {
   public:
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    [[nodiscard]] const Fd& buffered() const { return files_.slots_[file_].buffered; }
    /// Invalid where the file system has no direct I/O.
    [[nodiscard]] const Fd& direct() const { return files_.slots_[file_].direct; }

   private:
    friend class OutputFiles;
    Use(OutputFiles& files, std::uint32_t file) : files_(files), file_(file) {}
    OutputFiles& files_;
    std::uint32_t file_;
  };
  /// Opens the file if it is not. The first time it makes its folders, reserves its bytes and sees
  /// to it that a crash cannot take it out of them. Waits while as many files as may be are in use.
  [[nodiscard]] Use use(std::uint32_t file);

  /// Makes all earlier writes durable, through any descriptor.
  void sync_data(std::uint32_t file);
  /// Closes a file of which nothing more will be written.
  void close(std::uint32_t file);

  [[nodiscard]] const std::string& name(std::uint32_t file) const { return slots_[file].name; }
  [[nodiscard]] std::uint64_t n_bytes(std::uint32_t file) const { return slots_[file].n_bytes; }
  [[nodiscard]] std::size_t count() const { return slots_.size(); }
  /// True if any file has been opened for direct I/O.
  [[nodiscard]] bool uses_direct() const { return direct_used_; }
  /// True if the bytes of every file that was opened are reserved on the disk.
  [[nodiscard]] bool has_reserved() const { return has_reserved_; }

 private:
  struct Slot {
    enum class State : std::uint8_t { kClosed, kOpening, kOpen };

    std::string name;
    std::uint64_t n_bytes = 0;
    State state = State::kClosed;
    bool was_open = false;    // prepared by this process: folders, length and directory entry exist
    bool has_direct = false;  // of a file that was open
    std::size_t users = 0;
    std::list<std::uint32_t>::iterator idle;  // of an open file without users
    Fd buffered, direct;
  };

  void open(Slot& slot);
  void close_idle(Slot& slot);
  /// `folder` is relative to the directory of the output.
  void prepare_folders(const std::filesystem::path& folder);

  StagedFiles& staged_;
  const std::filesystem::path directory_;
  bool direct_;
  std::atomic<bool> has_reserved_ = true, direct_used_ = false;
  std::size_t max_open_;
  std::deque<Slot> slots_;

  mutable std::mutex mutex_;  // guards everything below, and the slots
  std::condition_variable changed_;
  std::list<std::uint32_t> idle_;  // open and not in use, the longest idle first
  std::size_t n_open_ = 0;

  std::mutex folders_mutex_;
  std::set<std::filesystem::path> folders_;  // folders that exist durably
};

}  // namespace ingot::convert
