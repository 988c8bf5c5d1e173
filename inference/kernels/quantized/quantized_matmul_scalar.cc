#include <cstdint>

#include "formats/base/error.h"
#include "formats/container/float8.h"
#include "inference/kernels/dot_lanes.h"
#include "inference/kernels/quantized/quantized_task.h"
#include "quantize/kernels/codes.h"

namespace ingot::inference::scalar {
namespace {

using formats::CodeKind;

std::uint8_t weight_code(const CodedMatrix& w, std::size_t row, std::size_t col) {
  return formats::scheme_facts(w.scheme).code == CodeKind::kE2m1
             ? quantize::code_at<4>(w.row(row), col)
             : quantize::code_at<8>(w.row(row), col);
}

// Adds a segment's products, in the lanes of dot_lanes.h (the first column in lane 0), times its
// factor to the lanes of the row.
void add_segment(const QuantizedTask& task, std::size_t m, std::size_t row,
                 const ScaledColumns& columns, float factor, DotLanes& totals) {
  DotLanes lanes{};
  for (std::size_t k = columns.begin; k < columns.end; ++k) {
    float& lane = lanes[(k - columns.begin) % kDotLanes];
    const float product = value_of(task.x->code, task.x->codes[m * task.x->cols + k]) *
                          value_of(task.x->code, weight_code(task.w, row, k));
    lane = lane + product;
  }
  for (std::size_t i = 0; i < kDotLanes; ++i) {
    const float scaled = lanes[i] * factor;
    totals[i] = totals[i] + scaled;
  }
}

float factor_of(const QuantizedTask& task, std::size_t m, std::size_t row,
                const ScaledColumns& columns) {
  return task.x->scales[m * task.x->groups + columns.x_group] *
         task.w.scale(task.w.group(row, columns.begin));
}

float integer_product(const QuantizedTask& task, std::size_t m, std::size_t row) {
  float total = 0;
  for (const ScaledColumns& columns : task.columns) {
    const float factor = task.fixed.deq_scale != nullptr ? task.fixed.deq_scale[row]
                                                         : factor_of(task, m, row, columns);
    const std::int64_t bias = task.fixed.quant_bias != nullptr ? task.fixed.quant_bias[row] : 0;
    const std::int64_t sum = integer_sum(task, m, row, columns.begin, columns.end) + bias;
    const float product = static_cast<float>(sum) * factor;
    total = total + product;
  }
  return total;
}

float float_product(const QuantizedTask& task, std::size_t m, std::size_t row) {
  DotLanes totals{};
  for (const ScaledColumns& columns : task.columns) {
    add_segment(task, m, row, columns, factor_of(task, m, row, columns), totals);
  }
  return fold_lanes(totals);
}

}  // namespace

std::int32_t integer_sum(const QuantizedTask& task, std::size_t m, std::size_t row,
                         std::size_t begin, std::size_t end) {
  const std::uint8_t* x = task.x->codes.data() + m * task.x->cols;
  const std::byte* w = task.w.row(row);
  std::int32_t sum = 0;
  for (std::size_t k = begin; k < end; ++k) {
    const auto b = static_cast<std::int8_t>(std::to_integer<std::uint8_t>(w[k]));
    sum += std::int32_t{static_cast<std::int8_t>(x[k])} * std::int32_t{b};
  }
  return sum;
}

void run_quantized_matmul(const QuantizedTask& task, std::size_t begin, std::size_t end) {
  const bool integers = task.x->code == CodeKind::kInt8;
  for (std::size_t m = 0; m < task.x->rows; ++m) {
    for (std::size_t row = begin; row < end; ++row) {
      task.y.row(m)[row] =
          one_nan(integers ? integer_product(task, m, row) : float_product(task, m, row));
    }
  }
}

}  // namespace ingot::inference::scalar
