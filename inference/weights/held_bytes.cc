#include "inference/weights/held_bytes.h"

#include <fmt/format.h>

#include "formats/base/error.h"

namespace ingot::inference {

namespace {
constexpr std::size_t kHugePage = std::size_t{2} << 20;
}

HeldBytes::HeldBytes(std::size_t n_bytes) : size_(n_bytes) {
  if (n_bytes == 0) return;
  if (n_bytes >= kHugePage) {
    mapped_ = AlignedBuffer(n_bytes);
    return;
  }
  heap_.reset(static_cast<std::byte*>(
      ::operator new (n_bytes, std::align_val_t{kAlignment}, std::nothrow)));
  if (heap_ == nullptr) {
    throw Error(ErrorCode::kLimit,
                fmt::format("cannot allocate {} bytes: the system has no more memory (lower "
                            "--mem-limit, or cache fewer tokens)",
                            n_bytes));
  }
}

}  // namespace ingot::inference
