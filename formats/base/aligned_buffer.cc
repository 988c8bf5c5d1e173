#include "formats/base/aligned_buffer.h"

#include <cstdint>
#include <new>

#include <sys/mman.h>

#include "formats/base/checked.h"

namespace ingot {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

}  // namespace

AlignedBuffer::AlignedBuffer(std::size_t n_bytes) : size_(n_bytes) {
  if (n_bytes == 0) return;
  const std::size_t alignment = n_bytes >= kHugePage ? kHugePage : kPage;
  const std::size_t mapped = round_up(n_bytes, kPage) + (alignment == kHugePage ? kHugePage : 0);
  void* const mapping =
      ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  // No fault of what is read: a check that collects such faults must not take it for one.
  if (mapping == MAP_FAILED) throw std::bad_alloc();
  mapping_ = {mapping, {.n_bytes = mapped}};
  const auto address = reinterpret_cast<std::uintptr_t>(mapping);
  data_ = static_cast<std::byte*>(mapping) + (round_up(address, alignment) - address);
  if (alignment == kHugePage) ::madvise(data_, round_down(size_, kHugePage), MADV_HUGEPAGE);
}

void AlignedBuffer::Unmap::operator()(void* mapping) const {
  ::munmap(mapping, n_bytes);
}

}  // namespace ingot
