#pragma once

#include <cstddef>
#include <memory>
#include <new>

#include "formats/base/aligned_buffer.h"
#include "formats/base/error.h"

namespace ingot::inference {

/// Uninitialised memory from a cache line's edge on. Memory of at least 2 MiB lies on huge pages:
/// memory that is used for the first time costs more in small ones than reading a fast disk does.
/// Each of those takes two of the 65,530 mappings that a process may have, so the matrices of an
/// expert share one.
class HeldBytes {
 public:
  static constexpr std::size_t kAlignment = 64;

  HeldBytes() = default;
  /// Throws kLimit when the system has no more.
  explicit HeldBytes(std::size_t n_bytes) : size_(n_bytes) {
    constexpr std::size_t kHugePage = std::size_t{2} << 20;
    if (n_bytes >= kHugePage) {
      mapped_ = AlignedBuffer(n_bytes);
    } else if (n_bytes != 0) {
      heap_.reset(static_cast<std::byte*>(
          ::operator new (n_bytes, std::align_val_t{kAlignment}, std::nothrow)));
      if (heap_ == nullptr) {
        throw Error(ErrorCode::kLimit,
                    "cannot allocate {} bytes: the system has no more memory (lower --mem-limit, "
                    "or cache fewer tokens)",
                    n_bytes);
      }
    }
  }

  [[nodiscard]] std::byte* data() const { return heap_ ? heap_.get() : mapped_.data(); }
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  struct Release {
    void operator()(std::byte* data) const noexcept {
      ::operator delete (data, std::align_val_t{kAlignment});
    }
  };
  AlignedBuffer mapped_;
  std::unique_ptr<std::byte, Release> heap_;
  std::size_t size_ = 0;
};

}  // namespace ingot::inference
