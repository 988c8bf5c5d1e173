#include "verify/outputs/draft_check.h"

#include <gtest/gtest.h>

#include "tests/inference/model/golden_file.h"
#include "tests/inference/model/runner.h"
#include "tests/support/expect_error.h"
#include "tests/verify/layers/example.h"

namespace ingot::testing {
namespace {

using namespace verify;

constexpr const char* kGolden = INGOT_SOURCE_DIR "/tests/golden/tiny-v32/forward_fp8.safetensors";

RunOptions exact() {
  return {.output_profile = inference::Profile::kF32};
}

std::uint64_t held_of(const DraftOutcomes& outcomes) {
  std::uint64_t n = 0;
  for (const auto& text : outcomes) n += static_cast<std::uint64_t>(std::ranges::count(text, true));
  return n;
}

std::uint64_t tokens_of(const DraftOutcomes& outcomes) {
  std::uint64_t n = 0;
  for (const auto& text : outcomes) n += text.size();
  return n;
}

// An independent program measured 0.947 over the recorded greedy answers.
TEST(DraftCheck, AcceptanceOfRecordedAnswersIsTheMeasuredOne) {
  const Example example;
  const GoldenFile golden(kGolden);
  std::vector<DraftText> texts;
  for (int p = 0; p < 4; ++p) {
    const auto ids = golden.integers(fmt::format("prompt{}.input_ids", p));
    const auto answer = golden.integers(fmt::format("prompt{}.greedy", p));
    DraftText& text = texts.emplace_back();
    text.first = ids.size();
    text.text.ids.assign(ids.begin(), ids.end());
    text.text.ids.insert(text.text.ids.end(), answer.begin(), answer.end());
  }
  const DraftOutcomes outcomes = measure_drafts(example.model, texts, exact());
  ASSERT_EQ(outcomes.size(), 4U);
  EXPECT_EQ(outcomes[1].size(), texts[1].text.ids.size() - texts[1].first);
  EXPECT_NEAR(static_cast<double>(held_of(outcomes)) / static_cast<double>(tokens_of(outcomes)),
              0.947, 0.02);
}

// The findings of the models' own loop, token by token.
TEST(DraftCheck, AnswersGoOnUntilThereAreEnough) {
  const Example example;
  const std::vector<DraftText> texts = answered_text(example.model, example.prompts, exact());
  const DraftOutcomes outcomes = measure_drafts(example.model, texts, exact());
  EXPECT_GE(tokens_of(outcomes), kDraftTokens);
  const DraftReport same = compare_drafts(outcomes, outcomes);
  EXPECT_EQ(same.tokens, tokens_of(outcomes));
  EXPECT_GT(same.source_acceptance(), 0.9);
  EXPECT_EQ(same.loss(), 0);
  EXPECT_EQ(same.interval, (Interval{0, 0}));
}

TEST(DraftCheck, EveryTokenOfAGivenTextCounts) {
  const Example example;
  const std::vector<Prompt> documents = {{.ids = {0}}, {.ids = {0, 5, 9, 7}}, {.ids = {0, 3}}};
  const DraftOutcomes outcomes = measure_drafts(example.model, whole_text(documents), exact());
  ASSERT_EQ(outcomes.size(), 3U);
  EXPECT_EQ(outcomes[0].size(), 0U);
  EXPECT_EQ(outcomes[1].size(), 3U);
  EXPECT_EQ(outcomes[2].size(), 1U);
}

TEST(DraftCheck, LossIsPairedAndInPoints) {
  // 64 tokens: both hold 32, only the source 16, only the output none.
  std::vector<bool> source(64), output(64);
  for (std::size_t i = 0; i < 64; ++i) {
    source[i] = i % 4 != 0;
    output[i] = i % 2 != 0;
  }
  const DraftReport report = compare_drafts({source, {}}, {output, {}});
  EXPECT_EQ(report.tokens, 64U);
  EXPECT_DOUBLE_EQ(report.source_acceptance(), 0.75);
  EXPECT_DOUBLE_EQ(report.output_acceptance(), 0.5);
  EXPECT_DOUBLE_EQ(report.loss(), 25);
  ASSERT_TRUE(report.interval);
  EXPECT_DOUBLE_EQ(report.sure_loss(), 25) << "both runs lose as much";
  const DraftReport few = compare_drafts({{true, true}}, {{true, false}});
  EXPECT_FALSE(few.interval);
  EXPECT_DOUBLE_EQ(few.sure_loss(), 50);
  EXPECT_EQ(compare_drafts({}, {}).loss(), 0);
}

}  // namespace
}  // namespace ingot::testing
