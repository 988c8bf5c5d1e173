#include "quantize/kernels/code_encode.h"
#include "quantize/kernels/scales/int4_scales.h"
#include "tests/quantize/awkward_matrices.h"
#include "tests/quantize/coded_matrix.h"
#include "tests/quantize/each_target.h"
#include "tests/support/test.h"

namespace ingot::quantize {
namespace {

using formats::SchemeId;

constexpr SchemeId kInt4 = SchemeId::kInt4Group;

Matrix row_of(std::vector<float> values) {
  Matrix matrix(1, values.size());
  matrix.values = std::move(values);
  return matrix;
}

float bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return std::bit_cast<float>((bits + 0x7FFFU + (bits >> 16 & 1U)) & 0xFFFF0000U);
}

/// Least squared error of a group over the candidates of docs/formats.md, in double, and its scale.
double least_error(const float* values, const float* weights, std::size_t n, bool with_signs,
                   double* chosen = nullptr) {
  double amax = 0, least = INFINITY, best = 1;
  for (std::size_t i = 0; i < n; ++i) amax = std::max(amax, std::fabs(double{values[i]}));
  const auto code = [](double quotient) {
    return std::nearbyint(std::min(std::max(quotient, -8.0), 7.0));
  };
  const auto consider = [&](double scale) {
    double error = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const double rest = double{values[i]} - code(double{values[i]} / scale) * scale;
      error += (weights == nullptr ? 1 : double{weights[i]}) * rest * rest;
    }
    if (error < least) best = scale;
    least = std::min(least, error);
  };
  for (int step = 0; step <= 40; ++step) {
    const double scale = bf16(static_cast<float>(amax / (7 + step / 8.0)));
    consider(scale);
    if (with_signs) consider(-scale);
  }
  double product = 0, squares = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const double weight = weights == nullptr ? 1 : double{weights[i]};
    product += weight * double{values[i]} * code(double{values[i]} / best);
    squares += weight * code(double{values[i]} / best) * code(double{values[i]} / best);
  }
  if (squares > 0) consider(bf16(static_cast<float>(product / squares)));
  if (chosen != nullptr) *chosen = best;
  return least;
}

double error_of(const Matrix& values, const Coded& coded, const std::vector<float>& weights) {
  const Matrix decoded = decode(coded);
  double error = 0;
  for (std::size_t i = 0; i < values.values.size(); ++i) {
    const double rest = double{values.values[i]} - double{decoded.values[i]};
    error += (weights.empty() ? 1 : double{weights[i % values.cols]}) * rest * rest;
  }
  return error;
}

TEST(Int4, FirstColumnIsInTheLowestBits) {
  Matrix matrix(1, 32);
  for (std::size_t i = 0; i < 8; ++i) matrix.values[i] = static_cast<float>(i);
  const Coded coded = encode(kInt4, matrix, {.options = {.search = ScaleSearch::kAmax}});
  EXPECT_EQ(coded.effective, std::vector<float>{1.0F});
  std::uint32_t word = 0;
  std::memcpy(&word, coded.weight.data(), sizeof word);
  EXPECT_EQ(word, 0xFEDCBA98U);
}

TEST(Int4, CodesAreChosenUnderTheStoredScale) {
  // amax / 7 = 0.142857 becomes 0.142578 in BF16, under which 0.3565 is nearer to 3 than to 2.
  Matrix matrix(1, 32);
  matrix.values[0] = 1.0F;
  matrix.values[1] = 0.3565F;
  const Coded coded = encode(kInt4, matrix, {.options = {.search = ScaleSearch::kAmax}});
  EXPECT_EQ(coded.effective[0], 0.142578125F);
  EXPECT_EQ(coded.code(0, 0), 15);
  EXPECT_EQ(coded.code(0, 1), 8 + 3);
  EXPECT_LT(0.3565F * 7, 2.5F);
}

TEST(Int4, ZeroGroupsHaveScaleOne) {
  const Coded coded = encode(kInt4, Matrix(2, 64));
  EXPECT_EQ(coded.effective, std::vector<float>(4, 1.0F));
  for (const std::byte byte : coded.weight) EXPECT_EQ(byte, std::byte{0x88});
}

TEST(Int4, SignedScalesServeALargePositiveEnd) {
  std::vector<float> values(32, 1.0F);
  values[3] = 8.0F;
  const Coded coded = encode(kInt4, row_of(values), {.options = {.search = ScaleSearch::kSigned}});
  EXPECT_EQ(coded.effective[0], -1.0F);
  EXPECT_EQ(coded.code(0, 3), 0);
  EXPECT_EQ(decode(coded).values, values);
}

TEST(Int4, FindsTheLeastErrorAmongTheCandidates) {
  for (const std::size_t group : {32U, 128U, 1024U}) {
    for (const bool with_signs : {false, true}) {
      for (const bool is_weighted : {false, true}) {
        const Matrix matrix = random_matrix(24, 1024, Shape::kHeavy, 91);
        std::vector<float> weights;
        std::mt19937 random(5);
        for (std::size_t i = 0; is_weighted && i < 1024; ++i)
          weights.push_back(static_cast<float>(random() % 100) / 10);
        const Coded coded =
            encode(kInt4, matrix,
                   {.options = {.search = with_signs ? ScaleSearch::kSigned : ScaleSearch::kMse},
                    .block = group,
                    .importance = weights});
        double least = 0;
        for (std::size_t at = 0; at < matrix.values.size(); at += group) {
          least +=
              least_error(matrix.values.data() + at,
                          is_weighted ? weights.data() + at % 1024 : nullptr, group, with_signs);
        }
        EXPECT_NEAR(error_of(matrix, coded, weights) / least, 1, 1e-4)
            << group << with_signs << is_weighted;
      }
    }
  }
}

TEST(Int4, ScalesAreThoseOfTheTwin) {
  for (const std::size_t group : {8U, 24U, 32U, 128U}) {
    for (const AwkwardMatrix& awkward : awkward_matrices(1, 5 * group)) {
      std::vector<float> weights(5 * group);
      for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(i % 11) / 10;
      for (const float* weighing :
           {static_cast<const float*>(nullptr), std::as_const(weights).data()}) {
        for (const ScaleSearch search :
             {ScaleSearch::kAmax, ScaleSearch::kMse, ScaleSearch::kSigned}) {
          const Int4Groups in{.values = awkward.matrix.values.data(),
                              .n_groups = 5,
                              .group_cols = group,
                              .search = search,
                              .weights = weighing};
          std::vector<float> expected(5);
          scalar::choose_int4_scales(in, expected);
          for_each_target([&] {
            std::vector<float> scales(5);
            choose_int4_scales(in, scales);
            EXPECT_EQ(scales, expected) << awkward.name << " " << group;
          });
          if (HasFailure()) return;
        }
      }
    }
  }
}

/// The least error of a group under the scales and zero points of int4_scales.h, in double.
double least_error_with_zeros(const float* values, const float* weights, std::size_t n) {
  double low = 0, high = 0, best_scale = 1;
  double least = least_error(values, weights, n, false, &best_scale);
  int best_zero = 8;
  for (std::size_t i = 0; i < n; ++i) {
    low = std::min(low, double{values[i]});
    high = std::max(high, double{values[i]});
  }
  const auto code = [](double quotient, int zero) {
    return std::nearbyint(std::min(std::max(quotient, static_cast<double>(-zero)), 15.0 - zero));
  };
  const auto consider = [&](double scale, int zero) {
    double error = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const double rest = double{values[i]} - code(double{values[i]} / scale, zero) * scale;
      error += (weights == nullptr ? 1 : double{weights[i]}) * rest * rest;
    }
    if (!(error < least)) return;
    least = error;
    best_scale = scale;
    best_zero = zero;
  };
  for (int step = 0; step <= 40; ++step) {
    const double scale = bf16(static_cast<float>((high - low) / (8 + step / 2.0)));
    // All sixteen: those that are left out of the search cannot be better.
    for (int zero = 0; zero < 16; ++zero) consider(scale, zero);
  }
  double product = 0, squares = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const double weight = weights == nullptr ? 1 : double{weights[i]};
    const double q = code(double{values[i]} / best_scale, best_zero);
    product += weight * double{values[i]} * q;
    squares += weight * q * q;
  }
  if (squares > 0) consider(bf16(static_cast<float>(product / squares)), best_zero);
  return least;
}

std::vector<float> some_weights(std::size_t n) {
  std::vector<float> weights;
  std::mt19937 random(5);
  for (std::size_t i = 0; i < n; ++i) weights.push_back(static_cast<float>(random() % 100) / 100);
  return weights;
}

TEST(Int4, FindsTheBestScaleAndZeroPoint) {
  for (const std::size_t group : {8U, 32U, 128U, 1024U}) {
    for (const Shape shape : {Shape::kNormal, Shape::kHeavy, Shape::kBimodal}) {
      for (const bool is_weighted : {false, true}) {
        Matrix matrix = random_matrix(4, 1024, shape, 91);
        // Some groups have one sign.
        for (std::size_t i = 0; i < 1024; ++i) matrix.values[i] = std::fabs(matrix.values[i]);
        const std::vector<float> weights = is_weighted ? some_weights(1024) : std::vector<float>();
        const Coded coded =
            encode(kInt4, matrix, {.block = group, .importance = weights, .has_zeros = true});
        double least = 0;
        for (std::size_t at = 0; at < matrix.values.size(); at += group) {
          least += least_error_with_zeros(
              matrix.values.data() + at, is_weighted ? weights.data() + at % 1024 : nullptr, group);
        }
        EXPECT_NEAR(error_of(matrix, coded, weights) / least, 1, 1e-4)
            << group << " " << static_cast<int>(shape) << is_weighted;
      }
    }
  }
}

/// Group by group: sums in FP32 may call an error less that is more by their own roundings. Codes
/// that would decode to an infinity, of values near it, are settled after the choice.
TEST(Int4, ZeroPointsAreNeverWorseThanNone) {
  for (const std::size_t group : {8U, 32U, 128U}) {
    for (const AwkwardMatrix& awkward : awkward_matrices(4, 8 * group)) {
      const Coded coded = encode(kInt4, awkward.matrix, {.block = group, .has_zeros = true});
      const Matrix decoded = decode(coded);
      for (std::size_t at = 0; at < awkward.matrix.values.size(); at += group) {
        double error = 0, norm = 0;
        const float* values = awkward.matrix.values.data() + at;
        if (largest_magnitude(std::vector<float>(values, values + group)) >= 0x1p126F) continue;
        for (std::size_t i = at; i < at + group; ++i) {
          const double rest = double{awkward.matrix.values[i]} - double{decoded.values[i]};
          error += rest * rest;
          norm += double{awkward.matrix.values[i]} * double{awkward.matrix.values[i]};
        }
        const double other = least_error(values, nullptr, group, false);
        ASSERT_LE(error, other * 1.0001 + norm * 1e-13) << awkward.name << " " << at;
      }
    }
  }
}

TEST(Int4, GroupsOfAffineCodesStayAsTheyAre) {
  std::mt19937 random(3);
  for (const std::size_t group : {8U, 32U, 128U}) {
    Matrix matrix(64, 2 * group);
    for (std::size_t r = 0; r < matrix.rows; ++r) {
      const float scale = bf16(std::ldexp(1 + static_cast<float>(random() % 128) / 128,
                                          static_cast<int>(random() % 40) - 20));
      const auto n_steps = static_cast<int>(1 + r % 15);
      const auto first = static_cast<int>(random() % (16U - static_cast<unsigned>(n_steps)));
      const int zero = static_cast<int>(random() % 16);
      for (std::size_t c = 0; c < matrix.cols; ++c) {
        const int last = first + n_steps;
        const int code =
            c % group == 3 ? first
            : c % group == 6
                ? last
                : first + static_cast<int>(random() % (static_cast<unsigned>(n_steps) + 1));
        matrix.values[r * matrix.cols + c] = static_cast<float>(code - zero) * scale;
      }
    }
    const Coded coded = encode(kInt4, matrix, {.block = group, .has_zeros = true});
    EXPECT_EQ(decode(coded).values, matrix.values) << group;
  }
}

TEST(Int4, ConstantGroupsAreExact) {
  for (const float value : {1.0F, -1.0F, 0x1p-100F, -0x1p100F, 0.0F}) {
    const std::vector<float> values(32, value);
    const Coded coded = encode(kInt4, row_of(values), {.has_zeros = true});
    EXPECT_EQ(decode(coded).values, values);
  }
}

TEST(Int4, ZeroGroupsHaveZeroPointEight) {
  const Coded coded = encode(kInt4, Matrix(2, 64), {.has_zeros = true});
  EXPECT_EQ(coded.effective, std::vector<float>(4, 1.0F));
  EXPECT_EQ(coded.zeros, std::vector<std::uint8_t>(4, 8));
  for (const std::byte byte : coded.weight) EXPECT_EQ(byte, std::byte{0x88});
}

TEST(Int4, AmaxWithZeroPointsCoversTheRange) {
  std::vector<float> values(32, 1.0F);
  values[0] = -3;
  values[1] = 12;
  const Coded coded =
      encode(kInt4, row_of(values), {.options = {.search = ScaleSearch::kAmax}, .has_zeros = true});
  EXPECT_EQ(coded.effective[0], 1.0F);
  EXPECT_EQ(coded.zeros[0], 3);
  EXPECT_EQ(coded.code(0, 0), 0);
  EXPECT_EQ(coded.code(0, 1), 15);
  EXPECT_EQ(decode(coded).values, values);
}

TEST(Int4, HugeRangesDecodeToNumbers) {
  for (const float other : {-1.0F, -0.5F, 0.0F, 1.0F}) {
    for (const ScaleSearch search : {ScaleSearch::kAmax, ScaleSearch::kMse}) {
      std::vector<float> values(32, other * std::numeric_limits<float>::max());
      values[5] = std::numeric_limits<float>::max();
      const Coded coded =
          encode(kInt4, row_of(values), {.options = {.search = search}, .has_zeros = true});
      for (const float value : decode(coded).values) EXPECT_TRUE(std::isfinite(value)) << other;
    }
  }
}

TEST(Int4, OneColumnThatMattersIsKept) {
  const Matrix matrix = random_matrix(16, 64, Shape::kBimodal, 4);
  std::vector<float> weights(64);
  weights[7] = weights[40] = 3;
  const Coded coded = encode(kInt4, matrix, {.importance = weights, .has_zeros = true});
  const Matrix decoded = decode(coded);
  for (std::size_t r = 0; r < 16; ++r) {
    for (const std::size_t c : {7U, 40U}) {
      const float value = matrix.values[r * 64 + c];
      EXPECT_NEAR(decoded.values[r * 64 + c], value, std::fabs(value) / 256);
    }
  }
}

TEST(Int4, ZeroPointsAreThoseOfTheTwin) {
  for (const std::size_t group : {8U, 24U, 32U, 128U}) {
    for (const AwkwardMatrix& awkward : awkward_matrices(1, 5 * group)) {
      std::vector<float> weights(5 * group);
      for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(i % 11) / 10;
      for (const float* weighing :
           {static_cast<const float*>(nullptr), std::as_const(weights).data()}) {
        for (const ScaleSearch search : {ScaleSearch::kAmax, ScaleSearch::kMse}) {
          const Int4Groups in{.values = awkward.matrix.values.data(),
                              .n_groups = 5,
                              .group_cols = group,
                              .search = search,
                              .weights = weighing};
          std::vector<float> expected(5);
          std::vector<std::uint8_t> expected_zeros(5);
          scalar::choose_int4_scales(in, expected, expected_zeros);
          for_each_target([&] {
            std::vector<float> scales(5);
            std::vector<std::uint8_t> zeros(5);
            choose_int4_scales(in, scales, zeros);
            EXPECT_EQ(scales, expected) << awkward.name << " " << group;
            EXPECT_EQ(zeros, expected_zeros) << awkward.name << " " << group;
          });
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(Int4, CodesWithZeroPointsAreThoseOfTheTwin) {
  for (const std::size_t group : {8U, 16U, 40U, 128U}) {
    for (const AwkwardMatrix& awkward : awkward_matrices(3, 6 * group)) {
      std::vector<float> scales;
      std::vector<std::uint8_t> zeros;
      for (std::size_t g = 0; g < 18; ++g) {
        const float* values = awkward.matrix.values.data() + g * group;
        const float amax = largest_magnitude(std::vector<float>(values, values + group));
        scales.push_back(amax == 0 ? 1 : std::max(amax / static_cast<float>(4 + g), 0x1p-133F));
        zeros.push_back(static_cast<std::uint8_t>(g % 16));
      }
      const ScaledGroups in{.values = awkward.matrix.view(),
                            .block_rows = 1,
                            .block_cols = group,
                            .scales = scales,
                            .zeros = zeros};
      const std::size_t stride = 3 * group;
      std::vector<std::byte> expected(3 * stride);
      scalar::encode_codes(formats::CodeKind::kInt4, in, expected.data(), stride);
      for_each_target([&] {
        std::vector<std::byte> codes(3 * stride);
        encode_codes(formats::CodeKind::kInt4, in, codes.data(), stride);
        EXPECT_EQ(codes, expected) << awkward.name << " " << group;
      });
      if (HasFailure()) return;
    }
  }
}

/// Many groups, so that a bound that is slightly above the error of a group would be seen.
TEST(Int4, ZeroPointsOfManyGroupsAreThoseOfTheTwin) {
  for (const std::size_t group : {32U, 128U, 512U}) {
    for (const auto& [shape, unit] :
         {std::pair(Shape::kNormal, 1.0F), std::pair(Shape::kHeavy, 1.0F),
          std::pair(Shape::kBimodal, 1.0F), std::pair(Shape::kNormal, 0x1p-131F),
          std::pair(Shape::kHeavy, 0x1p-136F), std::pair(Shape::kBimodal, 0x1p124F)}) {
      const Matrix matrix = random_matrix(1, 200 * 128, shape, 17, unit);
      const std::vector<float> weights = some_weights(matrix.cols);
      for (const bool is_weighted : {false, true}) {
        const Int4Groups in{.values = matrix.values.data(),
                            .n_groups = matrix.values.size() / group,
                            .group_cols = group,
                            .weights = is_weighted ? weights.data() : nullptr};
        std::vector<float> expected(in.n_groups);
        std::vector<std::uint8_t> expected_zeros(in.n_groups);
        scalar::choose_int4_scales(in, expected, expected_zeros);
        for_each_target([&] {
          std::vector<float> scales(in.n_groups);
          std::vector<std::uint8_t> zeros(in.n_groups);
          choose_int4_scales(in, scales, zeros);
          EXPECT_EQ(scales, expected) << "groups of " << group;
          EXPECT_EQ(zeros, expected_zeros) << "groups of " << group;
        });
        if (HasFailure()) return;
      }
    }
  }
}

/// Many groups, so that a bound that is slightly above the error of a group would be seen.
TEST(Int4, ScalesOfManyGroupsAreThoseOfTheTwin) {
  for (const std::size_t group : {32U, 128U, 512U}) {
    for (const Shape shape : {Shape::kNormal, Shape::kHeavy, Shape::kBimodal}) {
      const Matrix matrix = random_matrix(1, 400 * 128, shape, 17);
      for (const ScaleSearch search : {ScaleSearch::kMse, ScaleSearch::kSigned}) {
        const Int4Groups in{.values = matrix.values.data(),
                            .n_groups = matrix.values.size() / group,
                            .group_cols = group,
                            .search = search};
        std::vector<float> expected(in.n_groups);
        scalar::choose_int4_scales(in, expected);
        for_each_target([&] {
          std::vector<float> scales(in.n_groups);
          choose_int4_scales(in, scales);
          EXPECT_EQ(scales, expected) << "groups of " << group;
        });
        if (HasFailure()) return;
      }
    }
  }
}

TEST(Int4, DecodedValuesAreThoseOfTheTwin) {
  std::mt19937 random(7);
  for (const std::size_t cols : {16U, 32U, 80U, 256U}) {
    for (const std::size_t group : {8U, 16U, 40U, 256U}) {
      std::vector<std::byte> codes(4 * cols / 2);
      for (std::byte& byte : codes) byte = static_cast<std::byte>(random());
      const std::size_t across = (cols + group - 1) / group;
      std::vector<float> scales(4 * across);
      std::vector<std::uint8_t> zeros(scales.size());
      for (std::size_t i = 0; i < scales.size(); ++i) {
        scales[i] = static_cast<float>(random() % 1000) * 0.01F - 5;
        zeros[i] = static_cast<std::uint8_t>(random() % 16);
      }
      scales[0] = INFINITY;
      std::vector<std::uint32_t> order(cols);
      for (std::uint32_t& column : order) column = static_cast<std::uint32_t>(random() % across);
      for (const int what : {0, 1, 2, 3}) {
        CodedMatrix in{.scheme = formats::SchemeId::kInt4Group,
                       .codes = codes.data(),
                       .rows = 4,
                       .cols = cols,
                       .row_bytes = cols / 2,
                       .scales = scales,
                       .rows_per_matrix = 4,
                       .scale_cols = across,
                       .block_rows = 1,
                       .block_cols = group};
        if (what % 2 == 1) in.zeros = zeros;
        if (what >= 2) in.group_order = order;
        Matrix expected(4, cols);
        scalar::decode(in, expected.mutable_view());
        const std::size_t last = 3 * cols + cols - 1;
        const std::size_t of_last = what >= 2 ? order.back() : (cols - 1) / group;
        const int zero = what % 2 == 1 ? zeros[3 * across + of_last] : 8;
        const int code = std::to_integer<int>(codes[last / 2]) >> 4;
        EXPECT_EQ(expected.values[last],
                  static_cast<float>(code - zero) * scales[3 * across + of_last]);
        for_each_target([&] {
          Matrix decoded(4, cols);
          decode(in, decoded.mutable_view());
          EXPECT_EQ(std::memcmp(decoded.values.data(), expected.values.data(),
                                expected.values.size() * sizeof(float)),
                    0);
        });
        if (HasFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace ingot::quantize
