#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace ingot::convert {

/// Takes the bytes of an output: ranges of its files, in any order.
class ByteSink {
 public:
  /// A longer piece would not be in cache when it is hashed.
  static constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 20;

  virtual ~ByteSink() = default;

  /// Memory to fill.
  struct Lease {
    std::span<std::byte> bytes;
    std::uint32_t file = 0;
    std::uint64_t offset = 0;
  };
  /// Memory for the range [offset, offset + n_bytes) of a file, or for its beginning. May block, so
  /// that who calls this must hold no lease.
  virtual Lease acquire(std::uint32_t file, std::uint64_t offset, std::uint64_t n_bytes) = 0;
  /// The lease's bytes are in place; they belong to `item`.
  virtual void commit(const Lease& lease, std::uint32_t item) = 0;
  /// All ranges of `item` have been committed.
  virtual void finish_item(std::uint32_t item) = 0;
  /// The most bytes of a lease, and whether one lease can have so many bytes there.
  [[nodiscard]] virtual std::size_t window_bytes() const = 0;
  [[nodiscard]] virtual bool is_in_one_window(std::uint64_t offset,
                                              std::uint64_t n_bytes) const = 0;

  /// Fills a range of any length: calls fill(piece) for its consecutive pieces.
  template <typename Fill>
  void put(std::uint32_t file, std::uint64_t offset, std::uint64_t n_bytes, std::uint32_t item,
           const Fill& fill) {
    while (n_bytes > 0) {
      const Lease lease = acquire(file, offset, std::min(n_bytes, kMostBytes));
      fill(lease.bytes);
      commit(lease, item);
      offset += lease.bytes.size();
      n_bytes -= lease.bytes.size();
    }
  }
};

}  // namespace ingot::convert
