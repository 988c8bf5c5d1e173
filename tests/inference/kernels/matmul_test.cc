// Products with stored weights: every SIMD target gives the bits of the twin, and the twin the
// result of double arithmetic over quantize's decoded weights.

#include "inference/kernels/matmul.h"

#include "inference/kernels/matmul_task.h"
#include "quantize/rows.h"
#include "quantize/scheme.h"
#include "tests/inference/kernels/stored_matrix.h"
#include "tests/quantize/each_target.h"
#include "tests/support/test.h"

namespace ingot::inference {

using quantize::for_each_target;

namespace {

constexpr float kUntouched = -12345.0F;

struct Result {
  std::size_t rows, cols, stride;
  std::vector<float> values;

  Result(std::size_t n_rows, std::size_t n_cols)
      : rows(n_rows), cols(n_cols), stride(n_cols + 2), values(n_rows * stride, kUntouched) {}
  [[nodiscard]] MatrixView<float> view() {
    return {.data = values.data(), .rows = rows, .cols = cols, .stride = stride};
  }
};

/// FP32 weights, one code after the other.
std::vector<float> decoded(const StoredMatrix& matrix, WeightRounding rounding) {
  const CodedMatrix& w = matrix.view;
  std::vector<float> values(w.rows * w.cols);
  quantize::scalar::decode(
      w, {.data = values.data(), .rows = w.rows, .cols = w.cols, .stride = w.cols});
  if (rounding == WeightRounding::kBf16) {
    quantize::round_to_bf16(
        {.data = values.data(), .rows = w.rows, .cols = w.cols, .stride = w.cols});
  }
  return values;
}

TEST(Matmul, EqualsDoubleArithmeticOverDecodedWeights) {
  std::mt19937 random(1);
  for (const std::size_t cols : {64U, 130U, 384U}) {
    for (const StoredShape& shape : stored_shapes(7, cols)) {
      const StoredMatrix matrix(shape, Contents::kOrdinary, random);
      for (const WeightRounding rounding : {WeightRounding::kExact, WeightRounding::kBf16}) {
        const std::vector<float> weights = decoded(matrix, rounding);
        for (const std::size_t rows : {1U, 5U}) {
          const Activations x(rows, cols, Contents::kOrdinary, random);
          Result y(rows, 7);
          matmul(x.view(), matrix.view, rounding, y.view(), 1);
          for (std::size_t m = 0; m < rows; ++m) {
            for (std::size_t n = 0; n < 7; ++n) {
              double sum = 0;
              double magnitude = 0;
              for (std::size_t k = 0; k < cols; ++k) {
                const double product = double{x.view().row(m)[k]} * double{weights[n * cols + k]};
                sum += product;
                magnitude += std::fabs(product);
              }
              // One rounding per product, per addition to a lane and per fold.
              const double bound =
                  magnitude * 0x1p-24 * static_cast<double>(cols / kDotLanes + 1 + 1 + 4);
              ASSERT_NEAR(double{y.view().row(m)[n]}, sum, bound) << matrix.name();
            }
          }
        }
      }
    }
  }
}

void expect_twin(const StoredMatrix& matrix, const Activations& x, WeightRounding rounding) {
  Result expected(x.rows, matrix.view.rows);
  scalar::matmul(x.view(), matrix.view, rounding, expected.view());
  for_each_target([&] {
    Result y(x.rows, matrix.view.rows);
    matmul(x.view(), matrix.view, rounding, y.view(), 1);
    EXPECT_TRUE(same_bits(y.values, expected.values)) << matrix.name() << ", " << x.rows << " rows";
  });
}

TEST(Matmul, EveryTargetGivesTheBitsOfTheTwin) {
  std::mt19937 random(2);
  for (const std::size_t cols :
       {1U, 2U, 15U, 16U, 18U, 32U, 48U, 62U, 64U, 80U, 100U, 128U, 144U, 192U, 208U, 320U, 530U}) {
    for (const StoredShape& shape : stored_shapes(4 + random() % 10, cols)) {
      for (const Contents contents : {Contents::kOrdinary, Contents::kAnything}) {
        const StoredMatrix matrix(shape, contents, random);
        const Activations x(1 + random() % 9, cols, contents, random);
        for (const WeightRounding rounding : {WeightRounding::kExact, WeightRounding::kBf16}) {
          expect_twin(matrix, x, rounding);
        }
        if (HasFailure()) return;
      }
    }
  }
}

TEST(Matmul, EveryTargetEqualsTheTwinForAnyRows) {
  std::mt19937 random(3);
  for (const std::size_t rows : {1U, 2U, 3U, 4U, 5U, 6U, 7U, 8U, 9U, 13U}) {
    for (const std::size_t n : {1U, 3U, 4U, 5U, 6U, 7U, 12U, 23U, 24U, 25U, 31U}) {
      for (const StoredShape& shape : stored_shapes(n, 96)) {
        if (shape.first_row != 0) continue;
        const StoredMatrix matrix(shape, Contents::kOrdinary, random);
        const Activations x(rows, 96, Contents::kOrdinary, random);
        expect_twin(matrix, x, WeightRounding::kExact);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(Matmul, EveryTargetEqualsTheTwinBeyondOnePanel) {
  std::mt19937 random(4);
  for (const StoredShape& shape : stored_shapes(53, 1062)) {
    if (shape.first_row == 0) continue;
    const StoredMatrix matrix(shape, Contents::kOrdinary, random);
    const Activations x(133, 1062, Contents::kOrdinary, random);
    expect_twin(matrix, x, WeightRounding::kBf16);
    if (HasFailure()) return;
  }
}

// All E4M3 codes under powers of two from the smallest to beyond the largest, all INT8 codes, all
// BF16 and F16 words: one column each, so that a product shows the decoded weight itself.
TEST(Matmul, EveryTargetDecodesEveryCode) {
  using formats::SchemeId;
  std::mt19937 random(5);
  const float one = 1;
  for (const SchemeId scheme :
       {SchemeId::kBf16, SchemeId::kF16, SchemeId::kFp8Channel, SchemeId::kInt8Channel}) {
    const bool wide = scheme == SchemeId::kBf16 || scheme == SchemeId::kF16;
    const std::size_t n_codes = wide ? 65536 : 256;
    // Sixteen rows apart in one row: lanes do not mix with x zero elsewhere.
    StoredMatrix matrix({scheme, n_codes, 64, 1, 64}, Contents::kOrdinary, random);
    for (std::size_t i = 0; i < n_codes; ++i) {
      for (std::size_t k = 0; k < 64; ++k) {
        const std::size_t width = wide ? 2 : 1;
        std::memset(matrix.codes.data() + i * matrix.view.row_bytes + k * width, 0, width);
      }
      const std::size_t k = i % 64;
      const auto word = static_cast<std::uint16_t>(i);
      std::memcpy(matrix.codes.data() + i * matrix.view.row_bytes + k * (wide ? 2 : 1), &word,
                  wide ? 2 : 1);
    }
    const std::vector<float> x(64, one);
    const int first = wide ? 0 : -149;
    const int last = wide ? 0 : 127;
    for (int exponent = first; exponent <= last; exponent += 12) {
      for (float& scale : matrix.scales) scale = std::ldexp(1.0F, exponent);
      for (const WeightRounding rounding : {WeightRounding::kExact, WeightRounding::kBf16}) {
        std::vector<float> expected(n_codes);
        for (std::size_t i = 0; i < n_codes; ++i) {
          std::vector<float> row(64);
          quantize::scalar::decode(
              matrix.view.row_range(i, 1),
              {.data = row.data(), .rows = 1, .cols = row.size(), .stride = row.size()});
          float value = row[i % 64];
          if (rounding == WeightRounding::kBf16) {
            quantize::round_to_bf16({.data = &value, .rows = 1, .cols = 1, .stride = 1});
          }
          // Zero lanes are +0, and every NaN is one.
          expected[i] = std::isnan(value) ? std::bit_cast<float>(0x7FC00000U) : value + 0.0F;
        }
        for_each_target([&] {
          std::vector<float> y(n_codes);
          matmul({.data = x.data(), .rows = 1, .cols = 64, .stride = 64}, matrix.view, rounding,
                 {.data = y.data(), .rows = 1, .cols = n_codes, .stride = n_codes}, 1);
          EXPECT_TRUE(same_bits(y, expected)) << matrix.name() << " 2^" << exponent;
        });
        if (HasFailure()) return;
      }
    }
  }
}

TEST(Matmul, ThreadsDoNotChangeAResult) {
  std::mt19937 random(6);
  for (const StoredShape& shape : stored_shapes(700, 640)) {
    if (shape.first_row != 0) continue;
    const StoredMatrix matrix(shape, Contents::kOrdinary, random);
    for (const std::size_t rows : {1U, 6U}) {
      const Activations x(rows, 640, Contents::kOrdinary, random);
      Result one(rows, 700);
      matmul(x.view(), matrix.view, WeightRounding::kBf16, one.view(), 1);
      for (const std::size_t threads : {2U, 5U}) {
        Result many(rows, 700);
        matmul(x.view(), matrix.view, WeightRounding::kBf16, many.view(), threads);
        EXPECT_TRUE(same_bits(many.values, one.values)) << matrix.name();
      }
    }
  }
}

TEST(Matmul, ARangeOfRowsIsThoseRows) {
  std::mt19937 random(7);
  for (const StoredShape& shape : stored_shapes(40, 64)) {
    const StoredMatrix matrix(shape, Contents::kOrdinary, random);
    const Activations x(1, 64, Contents::kOrdinary, random);
    Result all(1, 40);
    matmul(x.view(), matrix.view, WeightRounding::kExact, all.view(), 1);
    Result part(1, 21);
    matmul(x.view(), matrix.view.row_range(13, 21), WeightRounding::kExact, part.view(), 1);
    for (std::size_t n = 0; n < 21; ++n) {
      EXPECT_EQ(bits_of(part.values[n]), bits_of(all.values[13 + n])) << matrix.name();
    }
  }
}

TEST(Matmul, EmptySidesAreLegal) {
  std::mt19937 random(8);
  const StoredMatrix matrix({formats::SchemeId::kBf16, 3, 0}, Contents::kOrdinary, random);
  std::vector<float> y(6, kUntouched);
  matmul({.data = nullptr, .rows = 2, .cols = 0, .stride = 0}, matrix.view, WeightRounding::kExact,
         {.data = y.data(), .rows = 2, .cols = 3, .stride = 3}, 2);
  EXPECT_EQ(y, std::vector<float>(6, 0.0F));
  matmul({.data = nullptr, .rows = 0, .cols = 0, .stride = 0}, matrix.view, WeightRounding::kExact,
         {.data = nullptr, .rows = 0, .cols = 3, .stride = 3}, 2);
}

}  // namespace

// Sums down columns: every SIMD target gives the bits of the twin, and the twin the result of
// double arithmetic.

namespace {

std::vector<float> twin(const Activations& x, const CodedMatrix& w, WeightRounding rounding) {
  std::vector<float> y(x.rows * w.cols);
  scalar::run_transposed(
      {.x = x.view(), .w = w, .rounding = rounding, .y = {y.data(), x.rows, w.cols, w.cols}}, 0,
      w.cols);
  return y;
}

std::vector<float> product(const Activations& x, const CodedMatrix& w, WeightRounding rounding,
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
