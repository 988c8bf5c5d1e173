#include <vector>

#include "formats/base/error.h"
#include "inference/kernels/dot_lanes.h"
#include "inference/kernels/matmul.h"
#include "inference/kernels/matmul_task.h"
#include "quantize/kernels/codes.h"
#include "quantize/scheme.h"

namespace ingot::inference::scalar {

void matmul(MatrixView<const float> x, const CodedMatrix& w, WeightRounding rounding,
            MatrixView<float> y) {
  INGOT_CHECK(x.cols == w.cols && y.rows == x.rows && y.cols == w.rows);
  std::vector<float> weights(w.cols);
  const MatrixView<float> row{.data = weights.data(), .rows = 1, .cols = w.cols, .stride = w.cols};
  for (std::size_t n = 0; n < w.rows; ++n) {
    quantize::scalar::decode(w.row_range(n, 1), row);
    for (float& weight : weights) weight = quantize::rounded_weight(weight, rounding);
    for (std::size_t m = 0; m < x.rows; ++m) {
      DotLanes lanes{};
      add_products(x.row(m), weights.data(), w.cols, lanes);
      y.row(m)[n] = one_nan(fold_lanes(lanes));
    }
  }
}

void run_matmul(const MatmulTask& task, std::size_t begin, std::size_t end) {
  const MatrixView<float> y = {task.y.data + begin, task.y.rows, end - begin, task.y.stride};
  scalar::matmul(task.rows, task.w.row_range(begin, end - begin), task.rounding, y);
}

void run_transposed(const TransposedTask& task, std::size_t begin, std::size_t end) {
  const auto& [x, w, rounding, table, y] = task;
  for (std::size_t m = 0; m < y.rows; ++m) {
    for (std::size_t c = begin; c < end; ++c) y.row(m)[c] = 0;
  }
  std::vector<float> weights(end - begin);
  for (std::size_t j = 0; j < w.rows; ++j) {
    decode_values(w, j, begin, end - begin, weights.data());
    for (float& weight : weights) weight = quantize::rounded_weight(weight, rounding);
    for (std::size_t m = 0; m < x.rows; ++m) {
      const float factor = x.row(m)[j];
      for (std::size_t c = begin; c < end; ++c) {
        const float product = factor * weights[c - begin];
        y.row(m)[c] = y.row(m)[c] + product;
      }
    }
  }
  for (std::size_t m = 0; m < y.rows; ++m) {
    for (std::size_t c = begin; c < end; ++c) y.row(m)[c] = one_nan(y.row(m)[c]);
  }
}

}  // namespace ingot::inference::scalar
