#include "inference/generate/sampling.h"

#include <array>
#include <cmath>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace ingot::inference {
namespace {

// How often each token is drawn at positions 0 to n - 1.
std::vector<std::size_t> counts_of(std::span<const float> logits, const SamplingOptions& options,
                                   std::size_t n) {
  std::vector<std::size_t> counts(logits.size());
  for (std::size_t i = 0; i < n; ++i) {
    ++counts[static_cast<std::size_t>(sample_token(logits, options, {.prompt = 7, .position = i}))];
  }
  return counts;
}

TEST(Sampling, GreedyTakesTheLowestOfEqualLogits) {
  EXPECT_EQ(greedy_token(std::array{1.0F, 3.0F, 3.0F}), 1);
  EXPECT_EQ(sample_token(std::array{1.0F, 3.0F, 3.0F}, {.temperature = 0}, {}), 1);
}

TEST(Sampling, DrawsFromTheSoftmaxOfTheLogits) {
  const std::array logits = {std::log(0.5F), std::log(0.3F), std::log(0.15F), std::log(0.05F)};
  constexpr std::size_t kDraws = 40'000;
  const auto counts = counts_of(logits, {}, kDraws);
  const std::array expected = {0.5, 0.3, 0.15, 0.05};
  double chi_square = 0;
  for (std::size_t j = 0; j < counts.size(); ++j) {
    const double wanted = expected[j] * kDraws;
    chi_square += (static_cast<double>(counts[j]) - wanted) *
                  (static_cast<double>(counts[j]) - wanted) / wanted;
  }
  EXPECT_LT(chi_square, 16.3);  // 3 degrees of freedom, p = 0.001
}

TEST(Sampling, TemperatureSharpensAndFlattens) {
  const std::array logits = {0.0F, 1.0F};
  const auto cold = counts_of(logits, {.temperature = 0.1F}, 4000);
  const auto hot = counts_of(logits, {.temperature = 10.0F}, 4000);
  EXPECT_EQ(cold[0], 0U);
  EXPECT_NEAR(static_cast<double>(hot[0]) / 4000, 1 / (1 + std::exp(0.1)), 0.03);
}

TEST(Sampling, TopKKeepsTiesOfItsLast) {
  const auto counts = counts_of(std::array{1.0F, 2.0F, 2.0F, 3.0F}, {.top_k = 2}, 4000);
  EXPECT_EQ(counts[0], 0U);
  EXPECT_GT(counts[1], 0U);
  EXPECT_GT(counts[2], 0U);
  EXPECT_GT(counts[3], 0U);
}

TEST(Sampling, TopPKeepsTheFewestThatReachIt) {
  const std::array logits = {std::log(0.5F), std::log(0.3F), std::log(0.15F), std::log(0.05F)};
  const auto counts = counts_of(logits, {.top_p = 0.75F}, 4000);
  EXPECT_GT(counts[1], 0U);
  EXPECT_EQ(counts[2] + counts[3], 0U);
  EXPECT_EQ(counts_of(logits, {.top_p = 0.0F}, 100)[0], 100U) << "at least one is kept";
}

TEST(Sampling, TopPCountsWhatTopKLeft) {
  const std::array logits = {std::log(0.4F), std::log(0.3F), std::log(0.3F)};
  // Top-k keeps two, and at least 0.5 / 0.7 is reached with both.
  const auto counts = counts_of(std::array{std::log(0.4F), std::log(0.35F), std::log(0.25F)},
                                {.top_k = 2, .top_p = 0.5F}, 2000);
  EXPECT_EQ(counts[0], 2000U) << "0.4 of 0.75 is more than half";
  EXPECT_EQ(counts_of(logits, {.top_p = 1.0F}, 10).size(), 3U);
}

TEST(Sampling, NoiseDependsOnSeedPromptAndPositionAlone) {
  const std::vector<float> logits(50, 0.0F);
  const SampleKey key{.prompt = 3, .position = 9};
  const auto token = sample_token(logits, {.seed = 1}, key);
  EXPECT_EQ(sample_token(logits, {.seed = 1}, key), token);
  std::set<std::int32_t> others;
  for (std::uint64_t i = 0; i < 20; ++i) {
    others.insert(sample_token(logits, {.seed = 100 + i}, key));
    others.insert(sample_token(logits, {.seed = 1}, {.prompt = 3, .position = 10 + i}));
    others.insert(sample_token(logits, {.seed = 1}, {.prompt = 4 + i, .position = 9}));
  }
  EXPECT_GT(others.size(), 20U);
}

TEST(Sampling, ImpossibleTokensAreNeverDrawn) {
  const auto counts = counts_of(std::array{-INFINITY, 0.0F, -200.0F}, {}, 2000);
  EXPECT_EQ(counts[1], 2000U);
}

}  // namespace
}  // namespace ingot::inference
