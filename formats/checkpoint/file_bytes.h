#pragma once

#include <vector>

#include "formats/checkpoint/checkpoint_files.h"
#include "formats/storage/stored_bytes.h"

namespace ingot::formats {

/// The weights files of one directory: every tensor is one range of one of them.
class FileBytes final : public StoredBytes {
 public:
  explicit FileBytes(std::vector<WeightsFile> files);

  [[nodiscard]] std::span<const SourceFile> files() const override { return facts_; }
  void read(std::uint32_t index, const StoredTensor& tensor, std::uint64_t offset,
            std::span<std::byte> out) const override;
  [[nodiscard]] std::vector<std::byte> header_bytes(std::uint32_t file) const override;
  [[nodiscard]] bool has_data(std::uint32_t file) const override;
  void read_file(std::uint32_t file, std::uint64_t offset, std::span<std::byte> out) const override;
  void close_file(std::uint32_t file) const override;

 private:
  std::vector<SourceFile> facts_;
  CheckpointFiles contents_;
};

}  // namespace ingot::formats
