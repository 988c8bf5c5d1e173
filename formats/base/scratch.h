#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace ingot {

/// Memory that is written before it is read; it grows to the largest request.
class Scratch {
 public:
  std::span<std::byte> take(std::uint64_t n_bytes) {
    if (n_bytes > size_) {
      bytes_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(n_bytes));
      size_ = n_bytes;
    }
    return {bytes_.get(), static_cast<std::size_t>(n_bytes)};
  }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  std::uint64_t size_ = 0;
};

}  // namespace ingot
