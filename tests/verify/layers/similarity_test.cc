#include "verify/layers/similarity.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "inference/base/matrix.h"
#include "tests/support/expect_error.h"

namespace ingot::testing {

using inference::Matrix;
using verify::LayerChoices;
using verify::PromptSpan;
using verify::Similarity;

namespace {

Matrix matrix(std::initializer_list<std::initializer_list<float>> rows) {
  Matrix matrix(rows.size(), rows.begin()->size());
  std::size_t r = 0;
  for (const auto& row : rows) std::copy(row.begin(), row.end(), matrix.row(r++).begin());
  return matrix;
}

const std::vector<std::int32_t> kIds = {7, 7, 7};

// Prompts of three tokens and of one.
std::vector<PromptSpan> two_prompts() {
  return {{.prompt = 0, .first = 0, .ids = kIds},
          {.prompt = 1, .first = 3, .ids = std::span(kIds).first(1)}};
}

TEST(Similarity, IsWhatTheDefinitionSaysOfEveryToken) {
  // Angles of 0, 45 and 90 degrees in the first prompt, 180 in the second.
  const Matrix source = matrix({{100, 0}, {1, 0}, {2, 0}, {0, 3}});
  const Matrix output = matrix({{100, 0}, {1, 1}, {0, 2}, {0, -3}});
  const Similarity is = verify::similarity(source.view(), output.view(), two_prompts(), 2);
  const double half = std::sqrt(0.5);
  EXPECT_DOUBLE_EQ(is.mean, (1 + half + 0 - 1) / 4);
  EXPECT_DOUBLE_EQ(is.median, (half + 0) / 2);
  EXPECT_DOUBLE_EQ(is.worst, -1);
  EXPECT_EQ(is.worst_prompt, 1U);
  EXPECT_EQ(is.worst_token, 0U);
  EXPECT_DOUBLE_EQ(is.mean_without_first, (half + 0) / 2);
  EXPECT_DOUBLE_EQ(is.worst_without_first, 0);
  EXPECT_DOUBLE_EQ(is.relative_error, std::sqrt((1.0 + 8 + 36) / (10000 + 1 + 4 + 9)));
  EXPECT_DOUBLE_EQ(is.max_error, 6);
}

TEST(Similarity, EqualStatesGiveOne) {
  const Matrix states = matrix({{0.1F, 0.7F}, {1e-20F, 3}, {0, 0}, {5, 6}});
  EXPECT_EQ(verify::similarity(states.view(), states.view(), two_prompts(), 1), Similarity{});
}

TEST(Similarity, NothingAndSomethingGiveZero) {
  const Matrix source = matrix({{0, 0}, {1, 1}, {1, 1}, {1, 1}});
  const Matrix output = matrix({{1, 0}, {1, 1}, {1, 1}, {1, 1}});
  const Similarity is = verify::similarity(source.view(), output.view(), two_prompts(), 1);
  EXPECT_EQ(is.worst, 0);
  EXPECT_EQ(is.mean_without_first, 1);
}

TEST(Similarity, LeavesOutRowsOfOtherPrompts) {
  const Matrix source = matrix({{1, 0}, {1, 0}, {1, 0}, {1, 0}});
  const Matrix output = matrix({{0, 1}, {0, 1}, {0, 1}, {1, 0}});
  const auto spans = two_prompts();
  EXPECT_EQ(verify::similarity(source.view(), output.view(), std::span(spans).last(1), 1),
            Similarity({.worst_prompt = 1}));
}

TEST(Similarity, RefusesWhatIsNotFinite) {
  const Matrix source = matrix({{1, 0}, {1, 0}, {1, 0}, {1, 0}});
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    Matrix output = source;
    output.row(2)[1] = bad;
    expect_error(ErrorCode::kNonFinite, {"token 2 of prompt 0"},
                 [&] { verify::similarity(source.view(), output.view(), two_prompts(), 1); });
  }
}

using Ids = std::vector<std::uint32_t>;

void choose_experts(LayerChoices& choices, const Ids& experts) {
  choices.taps().router(3, experts, std::vector<float>(experts.size()));
}

TEST(LayerChoices, CountTheExpertsThatBothTook) {
  LayerChoices source(2, 2), output(2, 4);
  choose_experts(source, {1, 4, 7, 0, 1, 2});
  // The first two rows of four.
  choose_experts(output, {1, 5, 7, 3, 4, 5, 1, 4, 7, 0, 1, 2});
  EXPECT_DOUBLE_EQ(source.router_overlap(output).value(), (2.0 / 3 + 0) / 2);
}

TEST(LayerChoices, CountRowsWhereBothChose) {
  LayerChoices source(3, 3), output(3, 6);
  const auto mine = source.taps(), other = output.taps();
  mine.indexer(0, 1, Ids{0, 2, 5, 9});
  mine.indexer(0, 2, Ids{1, 2});
  other.indexer(0, 0, Ids{1, 2});
  other.indexer(0, 1, Ids{2, 3, 4, 9});
  other.indexer(0, 5, Ids{1, 2});  // of the other set
  EXPECT_DOUBLE_EQ(source.indexer_overlap(output).value(), 0.5);
}

TEST(LayerChoices, SayNothingOfLayersThatHadNone) {
  const LayerChoices source(2, 2), output(2, 4);
  EXPECT_EQ(source.router_overlap(output), std::nullopt);
  EXPECT_EQ(source.indexer_overlap(output), std::nullopt);
}

}  // namespace

}  // namespace ingot::testing
