#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "formats/checkpoint/checkpoint.h"

namespace ingot::fuzz {

/// A weights file in memory.
class InputBytes final : public formats::StoredBytes {
 public:
  explicit InputBytes(std::span<const std::byte> input)
      : input_(input),
        files_{formats::SourceFile{.name = "model.safetensors", .n_bytes = input.size()}} {}

  [[nodiscard]] std::span<const formats::SourceFile> files() const override { return files_; }
  void read(std::uint32_t /*index*/, const formats::StoredTensor& tensor, std::uint64_t offset,
            std::span<std::byte> out) const override {
    read_file(0, tensor.offset + offset, out);
  }
  [[nodiscard]] std::vector<std::byte> header_bytes(std::uint32_t /*file*/) const override {
    return {};
  }
  [[nodiscard]] bool has_data(std::uint32_t /*file*/) const override { return true; }
  void read_file(std::uint32_t /*file*/, std::uint64_t offset,
                 std::span<std::byte> out) const override {
    if (offset > input_.size() || out.size() > input_.size() - offset)
      throw std::logic_error("a read beyond the file");
    std::copy_n(input_.begin() + static_cast<std::ptrdiff_t>(offset), out.size(), out.begin());
  }
  void close_file(std::uint32_t /*file*/) const override {}

 private:
  std::span<const std::byte> input_;
  std::array<formats::SourceFile, 1> files_;
};

}  // namespace ingot::fuzz
