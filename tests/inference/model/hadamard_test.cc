#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "inference/model/attention/indexer.h"

namespace ingot::inference {
namespace {

std::vector<float> random_values(std::size_t n) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

TEST(Hadamard, TakesTheFirstUnitVectorToEqualEntries) {
  std::vector<float> x(128, 0.0F);
  x[0] = 1.0F;
  hadamard(x);
  for (const float value : x) EXPECT_EQ(value, 0.0883883476F);
}

TEST(Hadamard, IsItsOwnInverse) {
  for (const std::size_t n : {1U, 2U, 32U, 128U}) {
    const std::vector<float> x = random_values(n);
    std::vector<float> y = x;
    hadamard(y);
    hadamard(y);
    for (std::size_t i = 0; i < n; ++i) EXPECT_NEAR(y[i], x[i], 2e-6) << n;
  }
}

// Sylvester's order: the sign is the parity of the common bits.
TEST(Hadamard, IsTheSumOverSignedEntries) {
  constexpr std::size_t kSize = 128;
  const std::vector<float> x = random_values(kSize);
  std::vector<float> y = x;
  hadamard(y);
  for (std::size_t b = 0; b < kSize; ++b) {
    double sum = 0;
    for (std::size_t a = 0; a < kSize; ++a) {
      sum += std::popcount(a & b) % 2 == 0 ? double{x[a]} : -double{x[a]};
    }
    EXPECT_NEAR(y[b], sum / std::sqrt(double{kSize}), 3e-6) << b;
  }
}

}  // namespace
}  // namespace ingot::inference
