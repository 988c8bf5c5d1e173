#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct XXH3_state_s;
struct SHA256state_st;

namespace ingot {

/// A 128-bit content hash, written as 32 lower-case hexadecimal digits (high word first).
struct Hash128 {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  friend bool operator==(const Hash128&, const Hash128&) = default;
  [[nodiscard]] std::string hex() const;
  /// High word first, each big-endian.
  [[nodiscard]] std::array<std::byte, 16> bytes() const;
  /// Throws kCorrupt unless `text` is exactly 32 hexadecimal digits.
  static Hash128 from_hex(std::string_view text);
};

/// Bytes hashed at a time; a tensor's hash is the hash of its chunks' hashes, so chunks may be done
/// in any order.
inline constexpr std::size_t kHashChunkBytes = std::size_t{4} << 20;

/// XXH3-128 (seed 0) of one run of bytes.
Hash128 hash_bytes(std::span<const std::byte> bytes);

/// XXH3-128 (seed 0) of bytes that are given piece by piece, such as those of one chunk.
class ChunkHasher {
 public:
  ChunkHasher();
  void update(std::span<const std::byte> bytes);
  [[nodiscard]] Hash128 finish() const;
  /// Starts again from the state of no input.
  void reset();

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

/// The tensor hash: each 4 MiB chunk (the last may be shorter, none when empty) is hashed with
/// XXH3-128; the result is XXH3-128 over the chunk hashes in order (each 16 bytes, big-endian)
/// followed by the total length (8 bytes, little-endian). Specified in docs/records.md.
class TensorHasher {
 public:
  /// Appends bytes, in order.
  void update(std::span<const std::byte> bytes);
  /// The hash of everything appended. Call once.
  [[nodiscard]] Hash128 finish();

 private:
  void close_chunk();

  ChunkHasher chunk_, whole_;
  std::size_t in_chunk_ = 0;
  std::uint64_t total_ = 0;
};

/// Plain SHA-256 (as the hub shows it), as lower-case hexadecimal digits.
class Sha256 {
 public:
  Sha256();
  void update(std::span<const std::byte> bytes);
  [[nodiscard]] std::string finish_hex();

 private:
  struct Free {
    void operator()(SHA256state_st* state) const;
  };
  std::unique_ptr<SHA256state_st, Free> state_;
};

}  // namespace ingot
