#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "formats/storage/tensor_source.h"

namespace ingot::formats {

class CheckpointFiles;

/// The source of the bytes of stored tensors: the files of one directory, or slices of several
/// joined (shard/join/joined.h). Safe from many threads.
class StoredBytes {
 public:
  virtual ~StoredBytes() = default;
  /// Weights files: for reports, fingerprints and errors. StoredTensor::file is an index into them.
  [[nodiscard]] virtual std::span<const SourceFile> files() const = 0;
  /// Fills `out` with bytes of `tensor`, which is number `index` of the source, from `offset`
  /// within it.
  virtual void read(std::uint32_t index, const StoredTensor& tensor, std::uint64_t offset,
                    std::span<std::byte> out) const = 0;
  /// The raw header bytes [0, 8+N) of a file.
  [[nodiscard]] virtual std::vector<std::byte> header_bytes(std::uint32_t file) const = 0;
  /// False when the file is gone and only its saved header is here.
  [[nodiscard]] virtual bool has_data(std::uint32_t file) const = 0;
  /// Raw bytes of a file at an absolute offset.
  virtual void read_file(std::uint32_t file, std::uint64_t offset,
                         std::span<std::byte> out) const = 0;
  /// Closes a file, so that deleting it frees its blocks. It is opened again if it is read again.
  virtual void close_file(std::uint32_t file) const = 0;
  /// True if each tensor is one range of one file: such files may be consumed.
  [[nodiscard]] virtual bool is_whole() const { return true; }
  /// The weights file that held a tensor before it was cut, as in the unsliced checkpoint; empty
  /// where it is unknown, and for whole tensors.
  [[nodiscard]] virtual std::string home_file(std::uint32_t /*index*/) const { return {}; }
  /// The files on disk behind all views; null where there are none.
  [[nodiscard]] virtual const CheckpointFiles* on_disk() const { return nullptr; }
};

/// Bytes of another source, some of whose tensors are seen in another form: all but read() is its.
class ForwardedBytes : public StoredBytes {
 public:
  explicit ForwardedBytes(std::unique_ptr<StoredBytes> bytes)
      : owned_(std::move(bytes)), bytes_(owned_.get()) {}
  /// Refers to bytes that outlive this.
  explicit ForwardedBytes(const StoredBytes& bytes) : bytes_(&bytes) {}

  [[nodiscard]] std::span<const SourceFile> files() const override { return bytes_->files(); }
  [[nodiscard]] std::vector<std::byte> header_bytes(std::uint32_t file) const override {
    return bytes_->header_bytes(file);
  }
  [[nodiscard]] bool has_data(std::uint32_t file) const override { return bytes_->has_data(file); }
  void read_file(std::uint32_t file, std::uint64_t offset,
                 std::span<std::byte> out) const override {
    bytes_->read_file(file, offset, out);
  }
  void close_file(std::uint32_t file) const override { bytes_->close_file(file); }
  [[nodiscard]] bool is_whole() const override { return bytes_->is_whole(); }
  [[nodiscard]] std::string home_file(std::uint32_t index) const override {
    return bytes_->home_file(index);
  }
  [[nodiscard]] const CheckpointFiles* on_disk() const override { return bytes_->on_disk(); }

 private:
  const std::unique_ptr<StoredBytes> owned_;  // null where the bytes are another's

 protected:
  const StoredBytes* const bytes_;
};

}  // namespace ingot::formats
