#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/storage/stored_bytes.h"

namespace ingot::formats {

/// The place that a weights file is read from.
struct WeightsFile {
  SourceFile facts;
  std::filesystem::path path;
  /// The saved header of a file that was consumed. Empty when the file is here.
  std::filesystem::path saved_header;
  /// Stamp of the file when its header was read; the offsets of tensors are right while the file
  /// has this stamp.
  std::optional<FileStamp> stamp = {};
};

/// The header bytes [0, 8+N) of a weights file, and how long the whole file is or was.
struct WeightsHeader {
  std::vector<std::byte> bytes;
  std::uint64_t file_bytes = 0;
  std::optional<FileStamp> stamp = {};  ///< stamp of the file; nullopt for a saved header
};
WeightsHeader read_weights_header(const WeightsFile& file);

/// The weights files of one directory: every tensor is one range of one of them. Descriptors are
/// opened on first use and at most so many are kept, so a checkpoint may have more files than the
/// process may open. A read throws kMismatch where a file was replaced or written to after its
/// header was read. Safe from many threads.
class CheckpointFiles final : public StoredBytes {
 public:
  explicit CheckpointFiles(std::vector<WeightsFile> files);

  [[nodiscard]] std::span<const SourceFile> files() const override { return facts_; }
  void read(std::uint32_t /*index*/, const StoredTensor& tensor, std::uint64_t offset,
            std::span<std::byte> out) const override {
    read_file(tensor.file, tensor.offset + offset, out);
  }
  [[nodiscard]] std::vector<std::byte> header_bytes(std::uint32_t file) const override;
  [[nodiscard]] bool has_data(std::uint32_t file) const override;
  void read_file(std::uint32_t file, std::uint64_t offset, std::span<std::byte> out) const override;
  [[nodiscard]] const CheckpointFiles* on_disk() const override { return this; }
  [[nodiscard]] const std::filesystem::path& path(std::uint32_t file) const {
    return slots_.at(file).file.path;
  }
  /// WeightsFile::stamp.
  [[nodiscard]] const std::optional<FileStamp>& stamp(std::uint32_t file) const {
    return slots_.at(file).file.stamp;
  }
  /// Closes a file, which must not be read meanwhile.
  void close_file(std::uint32_t file) const override;

 private:
  struct Slot {
    WeightsFile file;
    Fd fd;
    std::size_t users = 0;
    std::uint64_t last_use = 0;
  };
  class Lease;
  void close_longest_unused() const;

  std::vector<SourceFile> facts_;
  std::size_t max_open_;
  mutable std::mutex mutex_;  // guards everything below but Slot::file
  mutable std::vector<Slot> slots_;
  mutable std::size_t n_open_ = 0;
  mutable std::uint64_t clock_ = 0;
};

/// The places that files of a directory are read from: itself, or saved headers of files that are
/// gone.
std::vector<WeightsFile> locate_files(const std::vector<std::string>& names,
                                      const std::filesystem::path& directory,
                                      const std::filesystem::path& consumed_headers);

/// Reads every header and completes the files' facts. A file that cannot be read is reported and
/// has no tensors. In source order: by file, then by offset.
std::vector<StoredTensor> read_headers(std::vector<WeightsFile>& files, std::size_t threads,
                                       ErrorList& faults);

/// Names of the files that are here, but whose headers could not be read.
std::set<std::string_view> unreadable_files(std::span<const SourceFile> files);

}  // namespace ingot::formats
