#pragma once

#include <cstddef>
#include <span>

#include "formats/container/tensor.h"
#include "quantize/coded_matrix.h"
#include "quantize/kernels/decoding.h"

namespace ingot::inference {

using formats::MatrixView;
using quantize::CodedMatrix;

/// The order in which every FP32 dot product of the runtime is summed: element k is multiplied
/// (rounded) and added (rounded, never fused) to lane k % 16, in ascending k; then lane i takes
/// lane i + 8 for i < 8, i + 4 for i < 4, i + 2 for i < 2, i + 1. The same bits on every SIMD
/// target, for any number of rows and threads. A result that is NaN is the quiet NaN 0x7FC00000.
using quantize::kDotLanes;

using quantize::WeightRounding;

/// Views a plain FP32 matrix as a CodedMatrix.
inline CodedMatrix f32_matrix(const float* values, std::size_t rows, std::size_t cols,
                              std::size_t stride) {
  return {.codes = reinterpret_cast<const std::byte*>(values),
          .rows = rows,
          .cols = cols,
          .row_bytes = stride * sizeof(float)};
}

/// y[m, n] = dot(x[m, :], w[n, :]), weights decoded tile by tile. x is [M, K] and y [M, N], both
/// row-major with strides; M or N may be 0. On at most `threads` threads.
void matmul(MatrixView<const float> x, const CodedMatrix& w, WeightRounding rounding,
            MatrixView<float> y, std::size_t threads);

/// y[m, :] = sum over j of x[m, j] * w[j, :], j ascending, each product and each sum rounded; w is
/// [J, C] and y [M, C]. For attention: probabilities x values, and the absorbed form.
void matmul_transposed(MatrixView<const float> x, const CodedMatrix& w, WeightRounding rounding,
                       MatrixView<float> y, std::size_t threads);

/// Decodes one row to FP32 (embedding look-up).
void decode_row(const CodedMatrix& w, std::size_t row, std::span<float> out);

/// The specifications: element by element, on one thread.
namespace scalar {
void matmul(MatrixView<const float> x, const CodedMatrix& w, WeightRounding rounding,
            MatrixView<float> y);
}  // namespace scalar

}  // namespace ingot::inference
