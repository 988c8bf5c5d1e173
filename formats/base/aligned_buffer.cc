#include "formats/base/aligned_buffer.h"

#include <cstdint>
#include <utility>

#include <fmt/format.h>
#include <sys/mman.h>

#include "formats/base/checked.h"
#include "formats/base/error.h"

namespace ingot {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

}  // namespace

AlignedBuffer::AlignedBuffer(std::size_t n_bytes) : size_(n_bytes) {
  if (n_bytes == 0) return;
  const std::size_t alignment = n_bytes >= kHugePage ? kHugePage : kPage;
  mapping_bytes_ = round_up(n_bytes, kPage) + (alignment == kHugePage ? kHugePage : 0);
  mapping_ =
      ::mmap(nullptr, mapping_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping_ == MAP_FAILED) {
    mapping_ = nullptr;
    throw Error(ErrorCode::kLimit,
                fmt::format("cannot allocate a buffer of {} bytes (lower --mem-limit)", n_bytes));
  }
  const auto address = reinterpret_cast<std::uintptr_t>(mapping_);
  data_ = static_cast<std::byte*>(mapping_) + (round_up(address, alignment) - address);
  if (alignment == kHugePage) ::madvise(data_, round_down(size_, kHugePage), MADV_HUGEPAGE);
}

AlignedBuffer::~AlignedBuffer() {
  release();
}

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      mapping_(std::exchange(other.mapping_, nullptr)),
      mapping_bytes_(std::exchange(other.mapping_bytes_, 0)) {}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  if (this != &other) {
    release();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    mapping_ = std::exchange(other.mapping_, nullptr);
    mapping_bytes_ = std::exchange(other.mapping_bytes_, 0);
  }
  return *this;
}

void AlignedBuffer::release() {
  if (mapping_ != nullptr) ::munmap(mapping_, mapping_bytes_);
  mapping_ = nullptr;
}

}  // namespace ingot
