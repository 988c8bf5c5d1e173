#pragma once

#include <cstddef>

#include "inference/kernels/matmul.h"
#include "inference/kernels/weight_matrix.h"

namespace ingot::inference {

/// A product with a transposed matrix under way; w has at least one row.
struct TransposedTask {
  MatrixView<const float> x;
  WeightMatrix w;
  WeightRounding rounding = WeightRounding::kExact;
  const float* e2m1_table = nullptr;  ///< of fill_e2m1_table
  MatrixView<float> y;
};

namespace scalar {
/// Columns [begin, end) of y: the specification.
void run_transposed(const TransposedTask& task, std::size_t begin, std::size_t end);
}  // namespace scalar

/// The same on this processor's vectors; `begin` is a multiple of 16.
void run_matmul_transposed(const TransposedTask& task, std::size_t begin, std::size_t end);

}  // namespace ingot::inference
