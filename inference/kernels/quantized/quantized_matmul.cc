#include "inference/kernels/quantized/quantized_matmul.h"

#include <algorithm>

#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "formats/container/float8.h"
#include "inference/kernels/quantized/quantized_task.h"
#include "inference/kernels/weight_value.h"

namespace ingot::inference {
namespace {

using formats::CodeKind;

/// Products below which a second thread costs more than it saves.
constexpr std::size_t kProductsPerThread = std::size_t{1} << 18;
/// Columns that vector kernels take at once, at most.
constexpr std::size_t kPadding = 64;

void lay_out(QuantizedTask& task) {
  const QuantizedRows& x = *task.x;
  task.padded = (x.cols + kPadding - 1) / kPadding * kPadding;
  if (x.code == CodeKind::kInt8) {
    task.integers.assign(x.rows * task.padded, 0);
  } else {
    task.values.assign(x.rows * task.padded, 0.0F);
  }
  for (std::size_t m = 0; m < x.rows; ++m) {
    const std::uint8_t* codes = x.codes.data() + m * x.cols;
    for (std::size_t k = 0; k < x.cols; ++k) {
      const std::size_t at = m * task.padded + k;
      switch (x.code) {
        case CodeKind::kInt8:
          task.integers[at] = static_cast<std::int8_t>(codes[k]);
          break;
        case CodeKind::kE4m3:
          task.values[at] = formats::kE4m3Values[codes[k]];
          break;
        case CodeKind::kE2m1:
          task.values[at] = quantize::float_from_e2m1(codes[k]);
          break;
        case CodeKind::kPlain:
          INGOT_CHECK(false);
      }
    }
  }
}

}  // namespace

std::vector<ScaledColumns> scaled_columns(const QuantizedRows& x, const WeightMatrix& w) {
  std::vector<ScaledColumns> columns;
  for (std::size_t k = 0; k < x.cols;) {
    const std::size_t x_group = k / x.group;
    const std::size_t end = std::min((x_group + 1) * x.group, scale_group_end(w, k));
    columns.push_back({.begin = k,
                       .end = std::min(end, x.cols),
                       .x_group = x_group,
                       .w_group = (w.first_col + k) / w.block_cols});
    k = columns.back().end;
  }
  return columns;
}

void quantized_matmul(const QuantizedRows& x, const WeightMatrix& w, const StaticInt8& fixed,
                      MatrixView<float> y, std::size_t threads) {
  INGOT_CHECK(x.cols == w.cols && y.rows == x.rows && y.cols == w.rows);
  INGOT_CHECK(formats::scheme_facts(w.scheme).code == x.code);
  if (x.rows == 0 || w.rows == 0) return;
  check_matrix(w);
  QuantizedTask task{.w = w, .x = &x, .fixed = fixed, .y = y};
  task.columns = scaled_columns(x, w);
  // What is added to one sum belongs to a sum over all columns.
  INGOT_CHECK((fixed.quant_bias == nullptr && fixed.deq_scale == nullptr) ||
              task.columns.size() <= 1);
  lay_out(task);
  threads = std::clamp<std::size_t>(x.rows * w.rows * w.cols / kProductsPerThread, 1, threads);
  const std::size_t n_chunks = threads == 1 ? 1 : 4 * threads;
  const std::size_t chunk = ((w.rows + n_chunks - 1) / n_chunks + 3) / 4 * 4;
  parallel_for((w.rows + chunk - 1) / chunk, threads, [&](std::size_t i) {
    run_quantized_matmul(task, i * chunk, std::min((i + 1) * chunk, w.rows));
  });
}

}  // namespace ingot::inference
