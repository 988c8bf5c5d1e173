#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

namespace ingot::quantize {

/// Columns of a weight whose inputs have moments with each other.
inline constexpr std::size_t kMomentBlock = 16;

/// Second moments S of the inputs of a block of columns, as a search for scales uses them.
struct MomentBlock {
  /// U of S = U U^T, row-major, zeros below the diagonal.
  alignas(64) std::array<float, kMomentBlock * kMomentBlock> factor;
  /// Not negative, and so small that d^T S d is at least the sum of floor d^2 for every d, and the
  /// same as FP32 computes both. Zeros where the inputs depend on each other too much.
  std::array<float, kMomentBlock> floor;
};

/// Factors moments [n, 16, 16] of consecutive blocks, their diagonals times 1 + 2^-17. Those of
/// `group_blocks` blocks, which share a scale, are first multiplied by a power of four that brings
/// their largest diagonal element to 1 ... 4; if that is zero, they are the identity. All in
/// double, in a fixed order. Throws kCorrupt where a block is not finite, not symmetric or has a
/// direction in which its moment is negative, rounding apart; the message begins with the number of
/// the block.
std::vector<MomentBlock> factor_moments(std::span<const float> moments, std::size_t group_blocks);

}  // namespace ingot::quantize
