#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace ingot {

/// Anonymous memory for direct I/O: aligned to 4 KiB, and on huge pages where it is at least 2 MiB
/// (direct I/O from 4 KiB pages costs five times the CPU). Pages are given back to the system on
/// destruction.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(std::size_t n_bytes);  ///< throws std::bad_alloc

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::span<std::byte> span() const { return {data_, size_}; }

 private:
  struct Unmap {
    std::size_t n_bytes;
    void operator()(void* mapping) const;
  };
  std::unique_ptr<void, Unmap> mapping_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace ingot
