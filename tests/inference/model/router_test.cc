#include "inference/model/feed_forward/mixture.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace ingot::inference {
namespace {

using ::testing::ElementsAre;

Routing route_all(const RouterSpec& spec, const std::vector<float>& logits,
                  const std::vector<float>& bias = {}) {
  const std::size_t rows = logits.size() / spec.experts;
  return route(spec, {logits.data(), rows, spec.experts, spec.experts}, bias);
}

/// Logits whose sigmoids are these.
std::vector<float> logits_of(const std::vector<double>& scores) {
  std::vector<float> logits;
  for (const double s : scores) logits.push_back(static_cast<float>(std::log(s / (1 - s))));
  return logits;
}

void expect_weights(const Routing& routing, const std::vector<double>& wanted) {
  ASSERT_EQ(routing.weights.size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_NEAR(routing.weights[i], wanted[i], 2e-6) << i;
  }
}

RouterSpec sigmoid_router(std::size_t experts, std::size_t topk) {
  return {.experts = experts,
          .topk = topk,
          .score = GateScore::kSigmoid,
          .correction_bias = true,
          .normalize = true,
          .scale = 1.0F};
}

// The worked example of the model reference, 6.1.
TEST(Router, FollowsTheWorkedExample) {
  RouterSpec spec = sigmoid_router(8, 3);
  spec.groups = 4;
  spec.topk_groups = 2;
  spec.scale = 2.5F;
  const Routing routing =
      route_all(spec, logits_of({.9, .1, .6, .5, .3, .2, .8, .05}), {0, 0, 0, .2F, 0, 0, -.5F, 0});
  EXPECT_EQ(routing.topk, 3U);
  EXPECT_THAT(routing.experts, ElementsAre(0, 2, 3));
  expect_weights(routing, {1.125, 0.75, 0.625});
}

TEST(Router, NeverPicksFromADroppedGroup) {
  RouterSpec spec = sigmoid_router(4, 2);
  spec.groups = 2;
  const Routing routing = route_all(spec, logits_of({.6, .5, .3, .3}), {-1, -1, -2, -2});
  EXPECT_THAT(routing.experts, ElementsAre(0, 1));
  expect_weights(routing, {.6 / 1.1, .5 / 1.1});
}

TEST(Router, KeepsTheBiasOutOfTheWeights) {
  const Routing routing = route_all(sigmoid_router(3, 2), logits_of({.2, .5, .4}), {5, 0, 0});
  EXPECT_THAT(routing.experts, ElementsAre(0, 1));
  expect_weights(routing, {.2 / .7, .5 / .7});
}

TEST(Router, TakesTheLowerExpertOfEqualScores) {
  EXPECT_THAT(route_all(sigmoid_router(6, 3), {1, 2, 1, 1, 1, 1}).experts, ElementsAre(0, 1, 2));
  EXPECT_THAT(route_all(sigmoid_router(6, 2), {0, 1, 3, 3, 3, 3}).experts, ElementsAre(2, 3));
}

TEST(Router, TakesTheLowerGroupOfEqualScores) {
  RouterSpec spec = sigmoid_router(8, 2);
  spec.groups = 4;
  spec.topk_groups = 2;
  EXPECT_THAT(route_all(spec, {0, 0, 2, 1, 1, 2, 2, 1}, std::vector<float>(8, 0.0F)).experts,
              ElementsAre(2, 5));
}

// Two good experts beat one very good one where there is a bias, and lose where there is none.
TEST(Router, JudgesGroupsByTwoBestWithBias) {
  RouterSpec spec = sigmoid_router(6, 1);
  spec.groups = 2;
  const std::vector<float> logits = logits_of({.9, .1, .1, .8, .7, .1});
  EXPECT_THAT(route_all(spec, logits, std::vector<float>(6, 0.0F)).experts, ElementsAre(3));
  EXPECT_THAT(route_all(spec, logits).experts, ElementsAre(0));
}

TEST(Router, ManagesGroupsOfOneExpert) {
  RouterSpec spec = sigmoid_router(4, 2);
  spec.groups = 4;
  spec.topk_groups = 2;
  EXPECT_THAT(route_all(spec, {1, 4, 3, 2}, std::vector<float>(4, 0.0F)).experts,
              ElementsAre(1, 2));
}

// DeepSeek-V2: probabilities over all experts, not normalized again.
TEST(Router, SecondGenerationWeighsWithScaledProbabilities) {
  const RouterSpec spec = {
      .experts = 4, .topk = 2, .score = GateScore::kSoftmax, .normalize = false, .scale = 16.0F};
  const Routing routing = route_all(spec, {0, 1, 2, -1});
  const double sum = 1 + std::exp(1.0) + std::exp(2.0) + std::exp(-1.0);
  EXPECT_THAT(routing.experts, ElementsAre(1, 2));
  EXPECT_NEAR(routing.weights[0], 16 * std::exp(1.0) / sum, 2e-5);
  EXPECT_NEAR(routing.weights[1], 16 * std::exp(2.0) / sum, 2e-5);
}

// Qwen3: the same probabilities, normalized over the chosen.
TEST(Router, NormalizesBeforeItScales) {
  const RouterSpec spec = {
      .experts = 4, .topk = 2, .score = GateScore::kSoftmax, .normalize = true, .scale = 3.0F};
  const Routing routing = route_all(spec, {0, 1, 2, -1});
  const double e = std::exp(1.0);
  expect_weights(routing, {3 / (1 + e), 3 * e / (1 + e)});
}

TEST(Router, TreatsEveryTokenAlone) {
  const RouterSpec spec = sigmoid_router(4, 2);
  const std::vector<float> a = {1, 2, 3, 4}, b = {4, -3, 2, 1};
  std::vector<float> both = a;
  both.insert(both.end(), b.begin(), b.end());
  const std::vector<float> bias = {0, .1F, .2F, 0};
  const Routing of_both = route_all(spec, both, bias), of_a = route_all(spec, a, bias),
                of_b = route_all(spec, b, bias);
  EXPECT_THAT(of_both.experts,
              ElementsAre(of_a.experts[0], of_a.experts[1], of_b.experts[0], of_b.experts[1]));
  EXPECT_THAT(of_both.weights,
              ElementsAre(of_a.weights[0], of_a.weights[1], of_b.weights[0], of_b.weights[1]));
}

TEST(Router, ChoosesNothingForNoTokens) {
  const Routing routing = route_all(sigmoid_router(4, 2), {});
  EXPECT_TRUE(routing.experts.empty());
  EXPECT_TRUE(routing.weights.empty());
}

TEST(Router, SurvivesScoresOfZero) {
  const float low = -std::numeric_limits<float>::max();
  const Routing routing = route_all(sigmoid_router(4, 2), {low, low, low, low});
  EXPECT_THAT(routing.experts, ElementsAre(0, 1));
  EXPECT_THAT(routing.weights, ElementsAre(0.0F, 0.0F));
}

TEST(Router, RefusesNan) {
  ingot::testing::expect_error(ErrorCode::kNonFinite, {"NaN"}, [] {
    route_all(sigmoid_router(4, 2), {0, 1, std::numeric_limits<float>::quiet_NaN(), 2});
  });
}

}  // namespace
}  // namespace ingot::inference
