#pragma once

#include <array>
#include <cstdint>

#include "shard/align/align_blocks.h"

// The places where a weight may be cut: between numbers that share a scale, or a word.

namespace ingot::shard {

/// Rows and columns of a weight that share a scale, or a word, and may not be torn apart; 1 where a
/// cut may fall anywhere (also where all of a side share one, which every slice then repeats).
std::array<std::uint64_t, 2> indivisible(const TensorToAlign& tensor);

/// True if gate and up rows of experts are stored in turn.
bool is_interleaved(const TensorToAlign& tensor);

/// A cut's demand on the side that it cuts.
struct CutNeed {
  bool along_rows = false;
  std::uint64_t width = 0;  ///< rows of a section, or a divisor of all of them, or columns
  std::uint64_t n = 1;      ///< slices
  std::uint64_t unit = 1;   ///< elements that may not be torn apart

  [[nodiscard]] bool divides() const { return width % n == 0; }
  [[nodiscard]] bool fits() const { return divides() && width / n % unit == 0; }
  bool operator==(const CutNeed&) const = default;
};

/// The demand of the tensor's cut, whose sections divide the side; that of a tensor that is not cut
/// fits.
CutNeed need_of(const TensorToAlign& tensor);

}  // namespace ingot::shard
