#include "report/figures.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace ingot {
namespace {

TEST(Figures, NearlyPerfectCosineIsNotOne) {
  EXPECT_EQ(cosine_text(1), "1");
  EXPECT_EQ(cosine_text(0.9999999), "0.999999900");
  EXPECT_EQ(cosine_text(0.99986), "0.999860");
  EXPECT_EQ(cosine_text(std::nan("")), "NaN");
}

TEST(Figures, FewOfManyAreNotNone) {
  EXPECT_EQ(share_text(0, 1000), "0");
  EXPECT_EQ(share_text(1, 1'000'000'000), "<0.001%");
  EXPECT_EQ(share_text(1, 100), "1.000%");
  EXPECT_EQ(share_text(0, 0), "0");
}

TEST(Figures, NoErrorIsExact) {
  EXPECT_EQ(decibel_text(std::numeric_limits<double>::infinity()), "exact");
  EXPECT_EQ(decibel_text(20.128), "20.13");
}

TEST(Figures, BytesHaveThreeDigitsInDecimalUnits) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(999), "999 B");
  EXPECT_EQ(bytes_text(1000), "1.00 kB");
  EXPECT_EQ(bytes_text(9'994), "9.99 kB");
  EXPECT_EQ(bytes_text(9'996), "10.0 kB");
  EXPECT_EQ(bytes_text(99'960), "100 kB");
  EXPECT_EQ(bytes_text(999'499), "999 kB");
  EXPECT_EQ(bytes_text(999'500), "1.00 MB");
  EXPECT_EQ(bytes_text(688'574'839'360), "689 GB");
  EXPECT_EQ(bytes_text(~std::uint64_t{0}), "18.4 EB");
}

TEST(Figures, SecondsGrowIntoMinutesAndHours) {
  EXPECT_EQ(seconds_text(0), "0.0 s");
  EXPECT_EQ(seconds_text(59.94), "59.9 s");
  EXPECT_EQ(seconds_text(59.96), "1m 00s");
  EXPECT_EQ(seconds_text(185), "3m 05s");
  EXPECT_EQ(seconds_text(3599.6), "1h 00m");
  EXPECT_EQ(seconds_text(3720), "1h 02m");
  EXPECT_EQ(seconds_text(-1), "0.0 s");
}

TEST(Figures, CommasStandBetweenThousands) {
  EXPECT_EQ(count_text(0), "0");
  EXPECT_EQ(count_text(999), "999");
  EXPECT_EQ(count_text(1000), "1,000");
  EXPECT_EQ(count_text(~std::uint64_t{0}), "18,446,744,073,709,551,615");
}

}  // namespace
}  // namespace ingot
