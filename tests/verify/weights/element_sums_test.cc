#include "verify/weights/element_sums.h"

#include <cmath>

#include <gtest/gtest.h>

namespace ingot::verify {
namespace {

// Source {3, 4}, output {3, 5}.
ElementSums example() {
  ElementSums sums;
  sums.elements = 2;
  sums.exact = 1;
  sums.error = 1;
  sums.error2 = 1;
  sums.source2 = 25;
  sums.output2 = 34;
  sums.product = 29;
  sums.max_error = 1;
  sums.max_relative = 0.25;
  sums.step_histogram[3] = 2;
  return sums;
}

TEST(ElementSums, FiguresFollowFromTheSums) {
  const ElementSums sums = example();
  EXPECT_DOUBLE_EQ(sums.cosine(), 29 / std::sqrt(25.0 * 34.0));
  EXPECT_DOUBLE_EQ(sums.relative_error(), 0.2);
  EXPECT_DOUBLE_EQ(sums.sqnr_db(), 10 * std::log10(25.0));
  EXPECT_DOUBLE_EQ(sums.mean_error(), 0.5);
  EXPECT_DOUBLE_EQ(sums.fitted_scale(), 29.0 / 25);
}

TEST(ElementSums, ZerosAndNothingHaveDefinedFigures) {
  const ElementSums none;
  EXPECT_EQ(none.cosine(), 1);
  EXPECT_EQ(none.relative_error(), 0);
  EXPECT_TRUE(std::isinf(none.sqnr_db()));
  EXPECT_EQ(none.mean_error(), 0);
  EXPECT_EQ(none.fitted_scale(), 1);
  ElementSums same;  // whose roots are not exact
  same.source2 = same.output2 = same.product = 3;
  EXPECT_EQ(same.cosine(), 1);
  ElementSums lost;  // all became zero
  lost.elements = 1;
  lost.source2 = lost.error2 = 4;
  lost.error = -2;
  EXPECT_EQ(lost.cosine(), 0);
  EXPECT_EQ(lost.relative_error(), 1);
  EXPECT_EQ(lost.fitted_scale(), 0);
  ElementSums made;  // of nothing
  made.elements = 1;
  made.output2 = made.error2 = 4;
  EXPECT_EQ(made.cosine(), 0);
  EXPECT_TRUE(std::isinf(made.relative_error()));
}

TEST(ElementSums, WhatIsNotFiniteIsInNoMean) {
  ElementSums sums = example();
  sums.elements = 5;
  sums.nonfinite = 1;
  sums.source_nonfinite = 2;
  EXPECT_DOUBLE_EQ(sums.mean_error(), 0.5);
}

TEST(ElementSums, AdditionTakesCountsSumsAndTheLarger) {
  ElementSums sums = example();
  ElementSums other = example();
  other.max_error = 7;
  other.misrounded = 3;
  other.saturated = 4;
  other.zeroed = 5;
  sums.add(other);
  EXPECT_EQ(sums.elements, 4U);
  EXPECT_EQ(sums.exact, 2U);
  EXPECT_EQ(sums.misrounded, 3U);
  EXPECT_EQ(sums.saturated, 4U);
  EXPECT_EQ(sums.zeroed, 5U);
  EXPECT_EQ(sums.error, 2);
  EXPECT_EQ(sums.product, 58);
  EXPECT_EQ(sums.max_error, 7);
  EXPECT_EQ(sums.max_relative, 0.25);
  EXPECT_EQ(sums.step_histogram[3], 4U);
}

}  // namespace
}  // namespace ingot::verify
