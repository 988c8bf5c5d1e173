#include "verify/outputs/divergence.h"

#include <cmath>

#include <gtest/gtest.h>

namespace ingot::testing {
namespace {

using verify::LogitAgreement;
using verify::TokenDivergence;

float ln(double value) {
  return static_cast<float>(std::log(value));
}

TEST(Divergence, IgnoresAShiftOfLogits) {
  const std::vector<float> p = {ln(0.5), ln(0.25), ln(0.25)};
  const std::vector<float> q = {ln(0.25) + 10, ln(0.5) + 10, ln(0.25) + 10};
  const TokenDivergence token = verify::compare_logits(p, q, 1);
  EXPECT_NEAR(token.kl, 0.5 * std::log(2.0) - 0.25 * std::log(2.0), 1e-6);
  EXPECT_FALSE(token.same_top);
  EXPECT_NEAR(token.source_nll.value(), std::log(4.0), 1e-6);
  EXPECT_NEAR(token.output_nll.value(), std::log(2.0), 1e-6);
  EXPECT_NEAR(token.max_error, 10 + std::log(2.0), 1e-5);
  EXPECT_NEAR(verify::negative_log_likelihood(q, 2), std::log(4.0), 1e-6);
}

TEST(Divergence, SurvivesLogitsThatExpWouldNot) {
  const std::vector<float> p = {1000, 0}, q = {0, 1000};
  EXPECT_NEAR(verify::compare_logits(p, q, std::nullopt).kl, 1000, 1e-9);
  EXPECT_EQ(verify::compare_logits(p, p, std::nullopt).kl, 0);
  EXPECT_FALSE(verify::compare_logits(p, p, std::nullopt).source_nll.has_value());
}

TEST(Divergence, CountsTheSharedOfTheFiveLargest) {
  const std::vector<float> p = {9, 8, 7, 6, 5, 4, 3, 2};
  const std::vector<float> q = {9, 1, 7, 1, 5, 4, 8, 2};  // 0, 6, 2, 4, 5
  EXPECT_DOUBLE_EQ(verify::compare_logits(p, q, std::nullopt).top5, 0.6);
  EXPECT_TRUE(verify::compare_logits(p, q, std::nullopt).same_top);
}

TEST(Divergence, TakesTheLowerIdOfEquals) {
  const std::vector<float> p = {0, 5, 5}, q = {0, 5, 4};
  EXPECT_TRUE(verify::compare_logits(p, q, std::nullopt).same_top);
  EXPECT_EQ(verify::top_gap(p), 0);
  EXPECT_EQ(verify::top_gap(q), 1);
}

TEST(Divergence, IsAveragedOverTokensAndKnowsTheWorst) {
  const std::vector<TokenDivergence> tokens = {
      {.prompt = 0, .token = 0, .kl = 1, .max_error = 3, .source_nll = 2, .output_nll = 3},
      {.prompt = 0, .token = 1, .kl = 5, .same_top = false, .top5 = 0.5},
      {.prompt = 1, .token = 0, .kl = 0, .source_nll = 4, .output_nll = 4}};
  const LogitAgreement is = verify::logit_agreement(tokens);
  EXPECT_EQ(is.tokens, 3U);
  EXPECT_DOUBLE_EQ(is.mean_kl, 2);
  EXPECT_DOUBLE_EQ(is.worst_kl, 5);
  EXPECT_EQ(is.worst_prompt, 0U);
  EXPECT_EQ(is.worst_token, 1U);
  EXPECT_DOUBLE_EQ(is.top1, 2.0 / 3);
  EXPECT_DOUBLE_EQ(is.top5, 2.5 / 3);
  EXPECT_DOUBLE_EQ(is.max_error, 3);
  EXPECT_DOUBLE_EQ(is.source_nll, 3);
  EXPECT_DOUBLE_EQ(is.output_nll, 3.5);
  EXPECT_EQ(verify::logit_agreement({}), LogitAgreement{});
}

}  // namespace
}  // namespace ingot::testing
