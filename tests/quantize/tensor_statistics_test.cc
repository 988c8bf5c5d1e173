#include "quantize/tensor_statistics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace ingot::quantize {
namespace {

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
