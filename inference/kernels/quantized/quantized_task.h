#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "formats/container/float8.h"
#include "inference/kernels/quantized/quantized_matmul.h"
#include "quantize/coded_matrix.h"
#include "quantize/kernels/codes.h"

namespace ingot::inference {

/// Columns in which neither scale changes.
struct ScaledColumns {
  std::size_t begin = 0, end = 0;
  std::size_t x_group = 0;  ///< group of the activations
  std::size_t w_group = 0;  ///< column of the weight's grid
};

/// A quantized product under way.
struct QuantizedTask {
  CodedMatrix w;
  const QuantizedRows* x = nullptr;
  StaticInt8 fixed;
  MatrixView<float> y;
  std::vector<ScaledColumns> columns;
  /// The input x of vector kernels, each row padded with zeros to `padded` columns: the values of
  /// floating-point codes, or INT8 codes as 16-bit integers.
  std::size_t padded = 0;
  std::vector<float> values;
  std::vector<std::int16_t> integers;
};

/// The value of an E4M3 or E2M1 code.
inline float value_of(formats::CodeKind kind, std::uint8_t code) {
  return kind == formats::CodeKind::kE4m3 ? formats::kE4m3Values[code]
                                          : quantize::E2m1::value(code);
}

/// The columns of a product, ascending.
std::vector<ScaledColumns> scaled_columns(const QuantizedRows& x, const CodedMatrix& w);

namespace scalar {
/// Sum of products of INT8 codes in columns [begin, end): of row m of x and row `row` of w. Exact.
std::int32_t integer_sum(const QuantizedTask& task, std::size_t m, std::size_t row,
                         std::size_t begin, std::size_t end);
/// Columns [begin, end) of y: the specification.
void run_quantized_matmul(const QuantizedTask& task, std::size_t begin, std::size_t end);
}  // namespace scalar

/// Computes columns [begin, end) of y on this processor's vectors.
void run_quantized_matmul(const QuantizedTask& task, std::size_t begin, std::size_t end);

}  // namespace ingot::inference
