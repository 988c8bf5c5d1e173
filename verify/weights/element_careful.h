#pragma once

#include <cstddef>

#include "verify/weights/element_sums.h"
#include "verify/weights/step_grid.h"

namespace ingot::verify {

/// One piece of a row, and the scales from the group on that it begins in.
struct CarefulPiece {
  const float* source = nullptr;
  const float* output = nullptr;
  std::size_t n = 0;
  const float* scales = nullptr;  ///< null: 1 everywhere
  std::size_t group = 0;          ///< columns that share one
  std::size_t into_group = 0;     ///< column of the first group with which the piece begins
  bool is_in_histogram = false;
};

/// Adds a piece of any numbers under any scales, in double, from column to column. Where the scale
/// is below 2^-100, values may be off by 2^-149 more, the smallest step that FP32 has.
void compare_carefully(const CarefulPiece& piece, const StepGrid& grid, ElementSums& sums);

}  // namespace ingot::verify
