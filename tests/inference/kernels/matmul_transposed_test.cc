// Sums down columns: every SIMD target gives the bits of the twin, and the twin what double
// arithmetic gives.

#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "inference/kernels/matmul.h"
#include "inference/kernels/matmul_task.h"
#include "tests/inference/kernels/stored_matrix.h"
#include "tests/quantize/each_target.h"

namespace ingot::inference {
namespace {

using quantize::for_each_target;

std::vector<float> twin(const Activations& x, const WeightMatrix& w, WeightRounding rounding) {
  std::vector<float> y(x.rows * w.cols);
  scalar::run_transposed(
      {.x = x.view(), .w = w, .rounding = rounding, .y = {y.data(), x.rows, w.cols, w.cols}}, 0,
      w.cols);
  return y;
}

std::vector<float> product(const Activations& x, const WeightMatrix& w, WeightRounding rounding,
                           std::size_t threads = 1) {
  std::vector<float> y(x.rows * w.cols, -5.0F);
  matmul_transposed(x.view(), w, rounding, {y.data(), x.rows, w.cols, w.cols}, threads);
  return y;
}

TEST(MatmulTransposed, EqualsDoubleArithmeticOverDecodedWeights) {
  std::mt19937 random(1);
  for (const std::size_t cols : {64U, 130U}) {
    for (const StoredShape& shape : stored_shapes(70, cols)) {
      const StoredMatrix matrix(shape, Contents::kOrdinary, random);
      const Activations x(3, 70, Contents::kOrdinary, random);
      const std::vector<float> y = product(x, matrix.view, WeightRounding::kExact);
      std::vector<double> sums(3 * cols), sizes(3 * cols);
      std::vector<float> row(cols);
      for (std::size_t j = 0; j < 70; ++j) {
        decode_row(matrix.view, j, row);
        for (std::size_t i = 0; i < 3 * cols; ++i) {
          const double term = double{x.view().row(i / cols)[j]} * double{row[i % cols]};
          sums[i] += term;
          sizes[i] += std::abs(term);
        }
      }
      for (std::size_t i = 0; i < 3 * cols; ++i) {
        ASSERT_NEAR(double{y[i]}, sums[i], sizes[i] * 0x1p-24 * 72) << matrix.name();
      }
    }
  }
}

TEST(MatmulTransposed, EveryTargetGivesTheBitsOfTheTwin) {
  std::mt19937 random(2);
  for (const std::size_t cols : {1U, 2U, 16U, 30U, 64U, 100U, 128U, 144U, 272U, 530U}) {
    for (const std::size_t rows : {1U, 5U, 64U, 131U}) {
      for (const StoredShape& shape : stored_shapes(rows, cols)) {
        if (rows > 5 && shape.first_row != 0) continue;
        for (const Contents contents : {Contents::kOrdinary, Contents::kAnything}) {
          const StoredMatrix matrix(shape, contents, random);
          const Activations x(1 + random() % 7, rows, contents, random);
          for (const WeightRounding rounding : {WeightRounding::kExact, WeightRounding::kBf16}) {
            const std::vector<float> wanted = twin(x, matrix.view, rounding);
            for_each_target([&] {
              EXPECT_TRUE(same_bits(product(x, matrix.view, rounding), wanted))
                  << matrix.name() << ", " << x.rows << " rows";
            });
            if (HasFailure()) return;
          }
        }
      }
    }
  }
}

TEST(MatmulTransposed, ThreadsDoNotChangeAResult) {
  std::mt19937 random(3);
  for (const StoredShape& shape : stored_shapes(300, 1024)) {
    if (shape.first_row != 0) continue;
    const StoredMatrix matrix(shape, Contents::kOrdinary, random);
    const Activations x(4, 300, Contents::kOrdinary, random);
    EXPECT_TRUE(same_bits(product(x, matrix.view, WeightRounding::kBf16, 3),
                          product(x, matrix.view, WeightRounding::kBf16)))
        << matrix.name();
  }
}

TEST(MatmulTransposed, NoRowsGiveZeros) {
  std::mt19937 random(4);
  const StoredMatrix matrix({formats::SchemeId::kF32, 0, 5}, Contents::kOrdinary, random);
  const Activations x(2, 0, Contents::kOrdinary, random);
  EXPECT_EQ(product(x, matrix.view, WeightRounding::kExact), std::vector<float>(10, 0.0F));
}

// A zero in x leaves a sum as it is, which attention relies on for tokens that are not seen.
TEST(MatmulTransposed, ZerosAddNothing) {
  std::mt19937 random(5);
  const StoredMatrix matrix({formats::SchemeId::kF32, 80, 64}, Contents::kOrdinary, random);
  Activations x(1, 80, Contents::kOrdinary, random);
  std::fill(x.values.begin() + 33, x.values.begin() + 80, 0.0F);
  const std::vector<float> all = product(x, matrix.view, WeightRounding::kExact);
  x.cols = 33;
  EXPECT_TRUE(same_bits(product(x, matrix.view.row_range(0, 33), WeightRounding::kExact), all));
}

}  // namespace
}  // namespace ingot::inference
