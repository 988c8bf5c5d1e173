#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "formats/storage/stored_bytes.h"

namespace ingot::formats {

/// Bytes of other files, some of whose tensors are seen in another form: all but read() is theirs.
class ForwardedBytes : public StoredBytes {
 public:
  explicit ForwardedBytes(std::unique_ptr<StoredBytes> bytes) : bytes_(std::move(bytes)) {}

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

 protected:
  const std::unique_ptr<StoredBytes> bytes_;
};

}  // namespace ingot::formats
