#include "verify/outputs/interval.h"

#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace ingot::verify {
namespace {

TEST(StudentT, IsThatOfPrintedTables) {
  EXPECT_NEAR(student_t(1), 12.706, 5e-4);
  EXPECT_NEAR(student_t(4), 2.776, 5e-4);
  EXPECT_NEAR(student_t(10), 2.228, 5e-4);
  EXPECT_NEAR(student_t(11), 2.201, 5e-4);
  EXPECT_NEAR(student_t(30), 2.042, 5e-4);
  EXPECT_NEAR(student_t(120), 1.980, 5e-4);
}

TEST(MeanInterval, OfSingleSamplesIsTheTextbooks) {
  // Mean 2.5, standard deviation 1.29099, t of 3 degrees of freedom 3.18245.
  const std::vector<ClusterSum> clusters = {{1, 1}, {2, 1}, {3, 1}, {4, 1}};
  const auto interval = mean_interval(clusters);
  ASSERT_TRUE(interval);
  EXPECT_NEAR(interval->low, 0.44574, 1e-5);
  EXPECT_NEAR(interval->high, 4.55426, 1e-5);
}

TEST(MeanInterval, ClustersCountNotTheirTokens) {
  // 2,000 tokens of two prompts that disagree are two samples.
  const std::vector<ClusterSum> clusters = {{1000, 1000}, {4000, 1000}};
  const auto interval = mean_interval(clusters);
  ASSERT_TRUE(interval);
  EXPECT_NEAR(interval->low, 2.5 - 12.706205 * 1.5, 1e-4);
  EXPECT_NEAR(interval->high, 2.5 + 12.706205 * 1.5, 1e-4);
}

TEST(MeanInterval, LongerClustersWeighMore) {
  const std::vector<ClusterSum> clusters = {{3, 1}, {9, 3}};
  const auto interval = mean_interval(clusters);
  ASSERT_TRUE(interval);
  EXPECT_DOUBLE_EQ(interval->low, 3);
  EXPECT_DOUBLE_EQ(interval->high, 3);
}

TEST(MeanInterval, NeedsTwoClustersAndNumbers) {
  EXPECT_FALSE(mean_interval({}));
  EXPECT_FALSE(mean_interval(std::vector<ClusterSum>{{5, 100}}));
  EXPECT_FALSE(mean_interval(std::vector<ClusterSum>{{5, 100}, {0, 0}}));
  EXPECT_FALSE(mean_interval(
      std::vector<ClusterSum>{{5, 100}, {std::numeric_limits<double>::quiet_NaN(), 3}}));
}

}  // namespace
}  // namespace ingot::verify
