#include "verify/calibrate/input_statistics.h"

#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace ingot::verify {
namespace {

using ingot::testing::expect_error;

constexpr std::size_t kRows = 37, kCols = 1100;

std::vector<float> normal_values() {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> values(kRows * kCols);
  for (float& value : values) value = normal(random);
  return values;
}

formats::MatrixView<const float> rows_of(const std::vector<float>& values, std::size_t first,
                                         std::size_t n) {
  return {.data = values.data() + first * kCols, .rows = n, .cols = kCols, .stride = kCols};
}

bool same(const InputSummary& a, const InputSummary& b) {
  return a.min == b.min && a.max == b.max && a.mean_square == b.mean_square;
}

TEST(InputStatistics, AreRangeAndMeanSquares) {
  const std::vector<float> values = {1, -2, 3, 4, 0.5F, -6};
  InputStatistics statistics(2);
  statistics.add({.data = values.data(), .rows = 3, .cols = 2, .stride = 2}, 1);
  const InputSummary summary = statistics.summary();
  EXPECT_EQ(summary.min, -6);
  EXPECT_EQ(summary.max, 4);
  EXPECT_EQ(summary.amax(), 6);
  EXPECT_EQ(summary.mean_square, (std::vector<float>{10.25F / 3, 56.0F / 3}));
  EXPECT_EQ(statistics.tokens(), 3U);
}

TEST(InputStatistics, AlwaysHoldZero) {
  const std::vector<float> values = {2, 5};
  InputStatistics statistics(1);
  statistics.add({.data = values.data(), .rows = 2, .cols = 1, .stride = 1}, 1);
  EXPECT_EQ(statistics.summary().min, 0);
  EXPECT_EQ(statistics.summary().max, 5);
}

TEST(InputStatistics, IgnoreGroupingAndThreads) {
  const std::vector<float> values = normal_values();
  InputStatistics whole(kCols);
  whole.add(rows_of(values, 0, kRows), 1);
  for (const std::size_t threads : {1U, 3U}) {
    for (const std::size_t step : {1U, 5U, 36U}) {
      InputStatistics parts(kCols);
      for (std::size_t first = 0; first < kRows; first += step)
        parts.add(rows_of(values, first, std::min(step, kRows - first)), threads);
      EXPECT_TRUE(same(parts.summary(), whole.summary())) << threads << " " << step;
    }
  }
}

TEST(InputStatistics, AreSummedInDouble) {
  const float small = 1e-3F;
  std::vector<float> values(20'001, small);
  values[0] = 4096;
  InputStatistics statistics(1);
  statistics.add({.data = values.data(), .rows = values.size(), .cols = 1, .stride = 1}, 1);
  const double wanted = (4096.0 * 4096.0 + 20'000 * double{small} * double{small}) / 20'001;
  EXPECT_EQ(statistics.summary().mean_square.at(0), static_cast<float>(wanted));
}

TEST(InputStatistics, RefuseWhatIsNoNumber) {
  for (const float bad : {std::numeric_limits<float>::infinity(), -HUGE_VALF, NAN, 3e38F}) {
    const std::vector<float> values = {1, 1, 1, bad};
    InputStatistics statistics(2);
    statistics.add({.data = values.data(), .rows = 2, .cols = 2, .stride = 2}, 1);
    expect_error(ErrorCode::kNonFinite, {"column 1"}, [&] { (void)statistics.summary(); });
  }
}

TEST(InputSummary, IncludesTheLargerOfBoth) {
  InputSummary a{.min = -1, .max = 5, .mean_square = {1, 4}};
  a.include({.min = -3, .max = 2, .mean_square = {2, 3}});
  EXPECT_TRUE(same(a, {.min = -3, .max = 5, .mean_square = {2, 4}}));
}

}  // namespace
}  // namespace ingot::verify
