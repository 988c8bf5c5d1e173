#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "formats/container/tensor.h"

// Second moments of the inputs of a linear: sums over tokens of x x^T, whole or in blocks along the
// diagonal. The product of two FP32 numbers is exact in double, so a fused multiply-add gives the
// same sum as two operations, and every sum takes its tokens in their order: threads, batches and
// SIMD targets change no bit.

namespace ingot::verify {

/// Rows and columns that are summed together.
inline constexpr std::size_t kMomentGroup = 8;

/// Adds x_i x_j of some tokens, in their order, to a band of sums: row r of it is input r of the
/// panel `rows`, its columns are those of `n_panels` panels from `columns` on. A panel has
/// kMomentGroup inputs of all tokens, [tokens, kMomentGroup].
struct MomentBand {
  const double* rows = nullptr;
  const double* columns = nullptr;
  std::size_t n_panels = 0, n_tokens = 0;
  double* sums = nullptr;  ///< [kMomentGroup, n_panels * kMomentGroup]
};
void add_moments(const MomentBand& band);

/// The specification of the function above.
namespace scalar {
void add_moments(const MomentBand& band);
}

/// The moments that are summed.
enum class MomentExtent : std::uint8_t {
  kBlocks,  ///< moments of 16 inputs next to each other
  kWhole,   ///< moments of all inputs
};

/// Sums of x x^T over tokens. Only one triangle is held, and for blocks only those.
class MomentSums {
 public:
  /// REQUIRES: for blocks, `width` is a multiple of 16.
  MomentSums(std::size_t width, MomentExtent extent);

  void add(formats::MatrixView<const float> x, std::size_t threads);
  [[nodiscard]] std::uint64_t tokens() const { return tokens_; }
  [[nodiscard]] std::size_t width() const { return width_; }
  /// The sum over tokens of x_i x_j; REQUIRES: within the extent.
  [[nodiscard]] double at(std::size_t i, std::size_t j) const;
  /// The sum over tokens and inputs of x_i^2.
  [[nodiscard]] double trace() const;
  /// Sums and tokens of both. REQUIRES: the same width and extent.
  void include(const MomentSums& other);
  /// Forgets all tokens, and keeps the memory.
  void clear();

  /// Bytes that the sums take, and what add() takes meanwhile.
  static std::uint64_t memory(std::size_t width, MomentExtent extent);
  static std::uint64_t scratch(std::size_t width);

 private:
  /// The first group of columns in the rows of a group.
  [[nodiscard]] std::size_t first_group(std::size_t group) const;
  [[nodiscard]] std::size_t offset(std::size_t group) const;

  std::size_t width_, n_groups_;
  MomentExtent extent_;
  std::uint64_t tokens_ = 0;
  std::vector<double> sums_;
};

}  // namespace ingot::verify
