#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace ingot::formats {

/// One loop over the units of pieces: each turn goes `stride` units and `pieces` pieces on.
struct Step {
  std::uint64_t n = 1, stride = 0;
  std::uint32_t pieces = 0;
};

/// Fills the span with bytes of a piece, from the given byte of the piece on.
using ReadPiece =
    std::function<void(std::uint32_t piece, std::uint64_t offset, std::span<std::byte> out)>;

/// A whole that is made of stored pieces: its units one after another are those that a nest of
/// loops visits in the pieces, the outermost step first. A slice is a step with a smaller n, a
/// transposed matrix has its steps exchanged, stacked tensors are a step over pieces. It knows
/// numbers of pieces; what they are is up to the reader.
class Nest {
 public:
  /// Units of `unit_bits`: whole bytes, or 4. Nibbles have the first of a pair in the lower half of
  /// its byte, and a last step of an even number, without steps over pieces.
  Nest(std::uint32_t unit_bits, std::vector<Step> steps);

  [[nodiscard]] std::uint64_t n_bytes() const { return n_units_ / per_byte_; }
  /// Bytes of the whole from `offset` on. Ranges of pieces go straight to `out`, others through at
  /// most a few MiB.
  void gather(std::uint64_t offset, std::span<std::byte> out, const ReadPiece& read) const;

 private:
  std::uint64_t per_byte_ = 1;
  std::uint64_t n_units_ = 1;
  std::vector<Step> steps_;  // steps in bytes or nibbles; n >= 2, none is one with the next
};

}  // namespace ingot::formats
