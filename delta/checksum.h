#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace ingot::delta {

/// A checksum of a tensor's complete new bytes, as `checksum_format` names it.
enum class ChecksumKind : std::uint8_t { kXxh3, kBlake3, kAdler32 };

struct ChecksumRow {
  ChecksumKind kind;
  std::string_view name;
  std::size_t n_digits;  ///< lower-case hexadecimal digits of its text
};
/// The checksums that there are; the first is the default.
std::span<const ChecksumRow> checksums();
const ChecksumRow& checksum_row(ChecksumKind kind);
/// Null where there is none of this name.
const ChecksumRow* find_checksum(std::string_view name);

/// A checksum of bytes that are given piece by piece: XXH3-128 (seed 0, canonical), BLAKE3 of 32
/// bytes, or Adler-32 from 1.
class Checksum {
 public:
  explicit Checksum(ChecksumKind kind);
  ~Checksum();
  Checksum(Checksum&&) noexcept;
  Checksum& operator=(Checksum&&) noexcept;

  void update(std::span<const std::byte> bytes);
  /// The text of everything given. Call once.
  [[nodiscard]] std::string finish();

  struct Sum;

 private:
  std::unique_ptr<Sum> sum_;
};

}  // namespace ingot::delta
