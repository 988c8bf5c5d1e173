#pragma once

#include <array>
#include <cstddef>

namespace ingot::quantize {

/// Rows that the kernel makes at once.
inline constexpr std::size_t kLowRankRows = 4;

/// Some rows of a low-rank product, and where it is added.
struct LowRankRows {
  std::array<const float*, kLowRankRows> left{};  ///< `rank` numbers of each row
  std::array<double*, kLowRankRows> out{};        ///< `n` numbers of each row
  std::size_t n_rows = 0;                         ///< number of them, at most kLowRankRows
  const float* right = nullptr;                   ///< [rank, n]
  std::size_t right_stride = 0;
  std::size_t rank = 0, n = 0;
  double factor = 1;
};

/// Adds factor x (left x right) to `out`. In double: the products of a sum are exact, and are added
/// in ascending order of rank, with a rounding each; the sum times the factor is rounded, and so is
/// its addition to `out`. The SIMD targets agree with the scalar twin.
void add_low_rank(const LowRankRows& rows);

namespace scalar {
void add_low_rank(const LowRankRows& rows);
}

}  // namespace ingot::quantize
