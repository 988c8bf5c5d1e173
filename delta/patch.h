#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "delta/checksum.h"
#include "formats/base/hash.h"

// A tensor's difference, as a delta holds it: one zstd frame of level 1 with its content size. Its
// content is `xor` (new bytes XOR old ones), or `overwrite`: the number of changed bytes (u32), the
// position of each (u32, ascending), and the new bytes. Memory is bounded, whatever the tensor.

namespace ingot::delta {

enum class DeltaEncoding : std::uint8_t { kXor, kOverwrite };
std::string_view encoding_name(DeltaEncoding encoding);
std::optional<DeltaEncoding> find_encoding(std::string_view name);

/// Bytes from which positions of 32 bits do not reach every byte of a tensor.
inline constexpr std::uint64_t kOverwriteLimit = std::uint64_t{1} << 32;

/// Fills `out` with bytes from an offset.
using ReadBytes = std::function<void(std::uint64_t offset, std::span<std::byte> out)>;

/// Gives so many bytes from an offset, which are there until the next call and may be written to.
using ReadPiece = std::function<std::span<std::byte>(std::uint64_t offset, std::size_t n_bytes)>;

/// The two states of a tensor of `n_bytes`.
struct TensorSides {
  std::uint64_t n_bytes = 0;
  ReadPiece read_old, read_new;
};

/// A tensor that was compared.
struct TensorDifference {
  std::uint64_t n_changed = 0;  ///< changed bytes
  std::uint64_t n_payload = 0;  ///< bytes that were given to `put`; 0 without a change
  Hash128 old_hash, new_hash;   ///< tensor hashes
  std::string checksum;         ///< sum of the new bytes; empty without a change
};

/// Makes differences, one after another.
class DifferenceWriter {
 public:
  /// Compresses differences of 64 MiB and more on two threads of its own, or one if `threads` is 1.
  DifferenceWriter(DeltaEncoding encoding, ChecksumKind checksum, std::size_t threads = 1);
  ~DifferenceWriter();
  DifferenceWriter(DifferenceWriter&&) noexcept;
  DifferenceWriter& operator=(DifferenceWriter&&) noexcept;

  /// Bytes of the pieces that are read.
  static constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
  /// Compares both states piece by piece, and gives `put` the compressed difference in order. The
  /// bytes depend on the states and the encoding only: from 64 MiB on a frame is made of jobs of
  /// 1 MiB, whatever the number of threads. REQUIRES: with kOverwrite less than
  /// kOverwriteLimit bytes. Asks the StopScope before each piece.
  TensorDifference write(const TensorSides& sides,
                         const std::function<void(std::span<const std::byte>)>& put);

 private:
  class Frame;
  DeltaEncoding encoding_;
  ChecksumKind checksum_;
  std::unique_ptr<Frame> frame_;
};

/// A difference that is applied to old bytes in their order. Untrusted: a payload that is no zstd,
/// is too short or too long for the tensor, or has positions that do not ascend or lie behind its
/// end, throws kCorrupt.
class Patch {
 public:
  /// `read_payload` reads the compressed bytes.
  static std::unique_ptr<Patch> open(DeltaEncoding encoding, std::uint64_t tensor_bytes,
                                     ReadBytes read_payload, std::uint64_t n_payload);
  virtual ~Patch() = default;
  /// Makes new bytes of old ones that follow those of the call before.
  virtual void apply(std::span<std::byte> bytes) = 0;
  /// Throws unless the payload ends here, behind the tensor's last byte.
  virtual void finish() = 0;
};

}  // namespace ingot::delta
