#include "quantize/group_encoder.h"
#include "quantize/kernels/scales/nvfp4_scales.h"
#include "quantize/tensor_statistics.h"
#include "tests/quantize/awkward_matrices.h"
#include "tests/quantize/code_values.h"
#include "tests/quantize/coded_matrix.h"
#include "tests/quantize/each_target.h"
#include "tests/support/test.h"

// The NVFP4 search when columns matter differently, against a plain second implementation in
// double.

namespace ingot::quantize {
namespace {

using formats::SchemeId;

// The E4M3 code nearest to a positive number.
int nearest_e4m3(double value) {
  int best = 1;
  for (int code = 2; code <= 0x7E; ++code) {
    if (std::fabs(e4m3(code) - value) < std::fabs(e4m3(best) - value)) best = code;
  }
  return best;
}

double weighted_error(const float* block, const float* importance, double scale) {
  double error = 0;
  for (std::size_t i = 0; i < 16; ++i) {
    const double magnitude = std::fabs(double{block[i]});
    const double rest = magnitude - nearest_e2m1(magnitude / scale) * scale;
    error += double{importance[i]} * rest * rest;
  }
  return error;
}

// The least error of a block over the candidates of docs/formats.md, "NVFP4 scale search".
double least_error(const float* block, const float* importance, double global, ScaleSearch search) {
  double amax = 0;
  for (std::size_t i = 0; i < 16; ++i) amax = std::max(amax, std::fabs(double{block[i]}));
  const int amax_code = nearest_e4m3(amax / (6 * global));
  const auto error_of = [&](int code) {
    return weighted_error(block, importance, e4m3(code) * global);
  };
  double least = std::min(error_of(amax_code), error_of(nearest_e4m3(amax / (4 * global))));
  if (search == ScaleSearch::kFourOverSix) return least;
  const int last = std::min(amax_code + (amax_code < 16 ? 16 : 8), 0x7E);
  for (int code = std::max(amax_code - 3, 1); code <= last; ++code)
    least = std::min(least, error_of(code));
  return least;
}

// As mean squares of activations are: many small, few large, some nothing.
std::vector<float> random_importance(std::size_t cols, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> importance(cols);
  for (float& value : importance) value = random() % 9 == 0 ? 0 : std::exp(2 * normal(random));
  std::fill_n(importance.begin() + 32, 16, 0.0F);
  return importance;
}

std::vector<double> weighted_errors(const Matrix& matrix, const EncodeSetup& setup,
                                    const std::vector<float>& importance) {
  const Coded coded = encode(SchemeId::kNvfp4, matrix, setup);
  const Matrix decoded = decode(coded);
  std::vector<double> errors(matrix.values.size() / 16);
  for (std::size_t i = 0; i < matrix.values.size(); ++i) {
    const double rest = double{matrix.values[i]} - double{decoded.values[i]};
    errors[i / 16] += double{importance[i % matrix.cols]} * rest * rest;
  }
  return errors;
}

TEST(Importance, FindsTheLeastWeightedErrorAmongTheCandidates) {
  const std::vector<float> importance = random_importance(1024, 3);
  for (const Shape shape : {Shape::kNormal, Shape::kHeavy}) {
    const Matrix matrix = random_matrix(64, 1024, shape, 81);
    for (const ScaleSearch search : {ScaleSearch::kMse, ScaleSearch::kFourOverSix}) {
      for (const bool divides : {false, true}) {
        EncodeSetup setup{
            .options = {.search = search}, .divides = divides, .importance = importance};
        setup.global = find_scheme(SchemeId::kNvfp4)
                           ->global(largest_magnitude(matrix.values), setup.options, divides);
        const double global = divides ? 1 / double{setup.global} : double{setup.global};
        const std::vector<double> errors = weighted_errors(matrix, setup, importance);
        std::size_t worse = 0;
        double total = 0;
        for (std::size_t b = 0; b < errors.size(); ++b) {
          const double least =
              least_error(matrix.values.data() + b * 16, importance.data() + b * 16 % matrix.cols,
                          global, search);
          total += least;
          if (errors[b] > least * (1 + 0x1p-16)) ++worse;
        }
        EXPECT_LE(worse, errors.size() / 1000);
        EXPECT_LE(sum_of(errors), total * (1 + 1e-5));
      }
    }
  }
}

TEST(Importance, LowersTheWeightedErrorAndRaisesTheOther) {
  const Matrix matrix = random_matrix(64, 1024, Shape::kNormal, 82);
  const std::vector<float> importance = random_importance(1024, 4);
  const std::vector<float> all_alike(1024, 1.0F);
  const auto error = [&](const std::vector<float>& searched, const std::vector<float>& judged) {
    return sum_of(weighted_errors(matrix, {.importance = searched}, judged));
  };
  EXPECT_LT(error(importance, importance), 0.97 * error({}, importance));
  EXPECT_GT(error(importance, all_alike), error({}, all_alike));
}

TEST(Importance, UniformImportanceChangesNothing) {
  const Matrix matrix = random_matrix(32, 512, Shape::kHeavy, 83);
  for (const ScaleSearch search : {ScaleSearch::kMse, ScaleSearch::kFourOverSix}) {
    const Coded plain = encode(SchemeId::kNvfp4, matrix, {.options = {.search = search}});
    for (const float all : {0.0F, 1e-44F, 0.3F, 1.0F, 3e38F}) {
      const Coded weighted =
          encode(SchemeId::kNvfp4, matrix,
                 {.options = {.search = search}, .importance = std::vector<float>(512, all)});
      EXPECT_EQ(weighted.weight, plain.weight) << all;
      EXPECT_EQ(weighted.scales, plain.scales) << all;
    }
  }
}

TEST(Importance, DependsOnTheRatiosWithinABlockAlone) {
  const Matrix matrix = random_matrix(32, 512, Shape::kNormal, 84);
  std::vector<float> importance = random_importance(512, 5);
  const Coded before = encode(SchemeId::kNvfp4, matrix, {.importance = importance});
  for (std::size_t i = 0; i < importance.size(); ++i)
    importance[i] = std::ldexp(importance[i], i / 16 % 2 == 0 ? 110 : -60);
  const Coded after = encode(SchemeId::kNvfp4, matrix, {.importance = importance});
  EXPECT_EQ(after.scales, before.scales);
  EXPECT_EQ(after.weight, before.weight);
}

// A block of which one column matters: that column is as good as the candidates allow.
TEST(Importance, ImportantColumnIsServedAlone) {
  const Matrix matrix = random_matrix(1, 16, Shape::kNormal, 85);
  EncodeSetup setup{.global = largest_magnitude(matrix.values) / 1536};
  const Matrix plain = decode(encode(SchemeId::kNvfp4, matrix, setup));
  double with_importance = 0, without = 0;
  for (std::size_t i = 0; i < 16; ++i) {
    setup.importance.assign(16, 0.0F);
    setup.importance[i] = 1.0F;
    const Matrix weighted = decode(encode(SchemeId::kNvfp4, matrix, setup));
    const double least = least_error(matrix.values.data(), setup.importance.data(),
                                     double{setup.global}, ScaleSearch::kMse);
    const double rest = double{matrix.values[i]} - double{weighted.values[i]};
    EXPECT_NEAR(std::fabs(rest), std::sqrt(least), 1e-6) << i;
    with_importance += std::fabs(rest);
    without += std::fabs(double{matrix.values[i]} - double{plain.values[i]});
  }
  EXPECT_LT(with_importance, 0.5 * without);
}

TEST(Importance, EveryTargetGivesTheTwinsScales) {
  const EncodeOptions::Window windows[] = {{}, {126, 126, 126}};
  for (const std::size_t n_blocks : {1U, 7U, 16U, 21U}) {
    const std::size_t cols = n_blocks * kNvfp4Block;
    const std::vector<float> importance = random_importance(std::max<std::size_t>(cols, 48), 6);
    std::vector<float> weights(cols);
    group_weights(std::span(importance).first(cols), kNvfp4Block, weights);
    for (const AwkwardMatrix& awkward : awkward_matrices(1, cols)) {
      for (const bool divides : {false, true}) {
        const float global = find_scheme(SchemeId::kNvfp4)
                                 ->global(largest_magnitude(awkward.matrix.values), {}, divides);
        for (const ScaleSearch search : {ScaleSearch::kFourOverSix, ScaleSearch::kMse}) {
          for (const EncodeOptions::Window window : windows) {
            const Nvfp4Blocks in{.values = awkward.matrix.values.data(),
                                 .n_blocks = n_blocks,
                                 .global = global,
                                 .divides = divides,
                                 .lowest_code = nvfp4_lowest_code(global, divides),
                                 .search = search,
                                 .window = window,
                                 .weights = weights.data()};
            std::vector<std::uint8_t> expected(n_blocks), codes(n_blocks);
            std::vector<float> expected_scales(n_blocks), scales(n_blocks);
            scalar::choose_nvfp4_scales(in, expected.data(), expected_scales.data());
            for_each_target([&] {
              choose_nvfp4_scales(in, codes.data(), scales.data());
              EXPECT_EQ(codes, expected) << awkward.name;
              EXPECT_EQ(scales, expected_scales) << awkward.name;
            });
            if (HasFailure()) return;
          }
        }
      }
    }
  }
}

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TensorStatistics of(std::span<const float> values) {
  TensorStatistics statistics;
  statistics.accumulate(values);
  return statistics;
}

void expect_same(const TensorStatistics& a, const TensorStatistics& b) {
  EXPECT_EQ(a.count(), b.count());
  EXPECT_EQ(a.zeros(), b.zeros());
  EXPECT_EQ(a.nans(), b.nans());
  EXPECT_EQ(a.infinities(), b.infinities());
  EXPECT_EQ(std::bit_cast<std::uint32_t>(a.min()), std::bit_cast<std::uint32_t>(b.min()));
  EXPECT_EQ(std::bit_cast<std::uint32_t>(a.max()), std::bit_cast<std::uint32_t>(b.max()));
  EXPECT_EQ(a.mean(), b.mean());
  EXPECT_EQ(a.rms(), b.rms());
  for (std::size_t e = 0; e < TensorStatistics::kExponents; ++e) {
    EXPECT_EQ(a.in_exponent(e), b.in_exponent(e)) << e;
  }
}

TEST(TensorStatistics, CountsEveryKindOfValue) {
  const std::vector<float> values = {1.0F, -3.0F, 0.0F,  -0.0F,     kInfinity, -kInfinity,
                                     kNan, 1.5F,  -1.0F, 0x1p-140F, 0.25F};
  const TensorStatistics s = of(values);
  EXPECT_EQ(s.count(), 11U);
  EXPECT_EQ(s.zeros(), 2U);
  EXPECT_EQ(s.nans(), 1U);
  EXPECT_EQ(s.infinities(), 2U);
  EXPECT_EQ(s.finite(), 8U);
  EXPECT_EQ(s.min(), -3.0F);
  EXPECT_EQ(s.max(), 1.5F);
  EXPECT_EQ(s.amax(), 3.0F);
  EXPECT_EQ(s.in_exponent(127), 3U);
  EXPECT_EQ(s.in_exponent(128), 1U);
  EXPECT_EQ(s.in_exponent(125), 1U);
  EXPECT_EQ(s.in_exponent(0), 1U);
  EXPECT_EQ(s.mean(), (1.0 - 3.0 + 1.5 - 1.0 + 0.25) / 8);
  EXPECT_EQ(s.rms(), std::sqrt((1.0 + 9.0 + 2.25 + 1.0 + 0.0625) / 8));
}

TEST(TensorStatistics, NothingGivesZeros) {
  const TensorStatistics s = of({});
  EXPECT_EQ(s.count(), 0U);
  EXPECT_EQ(s.min(), 0.0F);
  EXPECT_EQ(s.amax(), 0.0F);
  EXPECT_EQ(s.mean(), 0.0);
  EXPECT_EQ(s.rms(), 0.0);
}

TEST(TensorStatistics, ExtremeValuesNeitherOverflowNorVanish) {
  const float largest = std::numeric_limits<float>::max();
  const float smallest = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(of(std::vector{largest, largest}).rms(), static_cast<double>(largest));
  EXPECT_EQ(of(std::vector{smallest, smallest}).rms(), static_cast<double>(smallest));
  EXPECT_EQ(of(std::vector{-smallest}).mean(), -static_cast<double>(smallest));
  EXPECT_EQ(of(std::vector{largest, -largest, 1.0F}).mean(), 1.0 / 3.0);
}

TEST(TensorStatistics, DoesNotDependOnOrderOrDivision) {
  std::mt19937 random(3);
  std::vector<float> values(20000);
  for (float& value : values) value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
  const TensorStatistics whole = of(values);
  for (const std::size_t step : {1U, 7U, 4096U}) {
    TensorStatistics merged;
    for (std::size_t i = 0; i < values.size(); i += step) {
      merged.merge(of(std::span(values).subspan(i, std::min(step, values.size() - i))));
    }
    expect_same(merged, whole);
  }
  std::shuffle(values.begin(), values.end(), random);
  expect_same(of(values), whole);
}

TEST(TensorStatistics, SumsAgreeWithLongDouble) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0.001F, 0.02F);
  std::vector<float> values(100000);
  long double sum = 0, squares = 0;
  for (float& value : values) {
    value = normal(random);
    sum += static_cast<long double>(value);
    squares += static_cast<long double>(value) * static_cast<long double>(value);
  }
  const TensorStatistics s = of(values);
  EXPECT_NEAR(s.mean(), static_cast<double>(sum / 100000), 1e-15);
  EXPECT_NEAR(s.rms(), static_cast<double>(std::sqrt(squares / 100000)), 1e-14);
}

}  // namespace
}  // namespace ingot::quantize
