// Steps that make no sense, and limits: an error that says so, and nothing else changed.

#include <regex>

#include <gtest/gtest.h>

#include "tests/inference/model/golden_file.h"
#include "tests/inference/model/runner.h"
#include "tests/support/expect_error.h"

namespace ingot::testing {
namespace {

using inference::KvFormat;
using inference::Matrix;
using inference::ModelCache;
using inference::Row;
using inference::SequenceId;

class BadStep : public ::testing::Test {
 protected:
  BadStep()
      : opened_(INGOT_SOURCE_DIR "/examples/tiny-v32"),
        cache_(opened_.model.make_cache(KvFormat::kF32, 192)),
        a_(cache_.add()),
        b_(cache_.add()) {
    opened_.model.step(rows(a_, 0, 5), cache_);
  }

  static std::vector<Row> rows(SequenceId sequence, std::uint32_t first, std::uint32_t n) {
    std::vector<Row> rows;
    for (std::uint32_t i = first; i < first + n; ++i) {
      rows.push_back({.sequence = sequence,
                      .position = i,
                      .token = static_cast<std::int32_t>(10 + i),
                      .logits = true});
    }
    return rows;
  }
  static std::vector<Row> joined(std::vector<Row> first, const std::vector<Row>& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
  }
  /// The step fails so, and both sequences are as long as before.
  void expect_refused(ErrorCode code, std::initializer_list<std::string> fragments,
                      const std::vector<Row>& step) {
    expect_error(code, fragments, [&] { opened_.model.step(step, cache_); });
    EXPECT_EQ(cache_.main().length(a_), 5U);
    EXPECT_EQ(cache_.main().length(b_), 0U);
  }

  OpenedModel opened_;
  ModelCache cache_;
  SequenceId a_, b_;
};

TEST_F(BadStep, TokensOutsideTheVocabularyAreRefused) {
  for (const std::int32_t token : {-1, 2048, 2'000'000'000}) {
    std::vector<Row> step = joined(rows(a_, 5, 3), rows(b_, 0, 2));
    step[4].token = token;
    expect_refused(ErrorCode::kInvalidArgument, {std::to_string(token), "2048"}, step);
    EXPECT_THROW(static_cast<void>(opened_.model.embed(step)), Error);
    const Matrix states(2, opened_.model.spec().hidden);
    expect_error(ErrorCode::kInvalidArgument, {std::to_string(token)}, [&] {
      static_cast<void>(opened_.model.mtp(states, std::span(step).last(2), cache_));
    });
    EXPECT_EQ(cache_.mtp().length(b_), 0U);
  }
}

TEST_F(BadStep, PositionsWithGapsAreRefused) {
  expect_refused(ErrorCode::kInvalidArgument, {"position 6", "5 tokens"}, rows(a_, 6, 1));
  expect_refused(ErrorCode::kInvalidArgument, {"position 1", "0 tokens"}, rows(b_, 1, 3));
  expect_refused(ErrorCode::kInvalidArgument, {"row 2", "position 8", "after 6"},
                 joined(rows(a_, 5, 2), rows(a_, 8, 1)));
  expect_refused(ErrorCode::kInvalidArgument, {"row 2", "position 6", "after 6"},
                 joined(rows(a_, 5, 2), rows(a_, 6, 1)));
  std::vector<Row> backwards = rows(a_, 5, 2);
  std::swap(backwards[0], backwards[1]);
  expect_refused(ErrorCode::kInvalidArgument, {"row 1"}, backwards);
  std::vector<Row> last = rows(b_, 0, 1);
  last[0].position = 4294967295U;
  expect_refused(ErrorCode::kInvalidArgument, {"position 4294967295"}, last);
}

// A good sequence beside a bad one stays as it was, too.
TEST_F(BadStep, NothingIsReservedForTheOthers) {
  expect_refused(ErrorCode::kInvalidArgument, {"position 2", "0 tokens"},
                 joined(rows(a_, 5, 10), rows(b_, 2, 1)));
  expect_refused(ErrorCode::kLimit, {"no room"}, joined(rows(a_, 5, 10), rows(b_, 0, 180)));
}

TEST_F(BadStep, ASequenceInTwoPlacesIsRefused) {
  expect_refused(ErrorCode::kInvalidArgument, {"two places"},
                 joined(joined(rows(a_, 5, 1), rows(b_, 0, 1)), rows(a_, 6, 1)));
}

TEST_F(BadStep, RefusesPromptsBeyondTheCapacity) {
  expect_refused(ErrorCode::kLimit, {"no room for 200 tokens"}, rows(b_, 0, 200));
  EXPECT_EQ(opened_.model.step(rows(b_, 0, 20), cache_).rows(), 20U);
}

/// The first number that follows these words.
std::uint64_t number_after(const std::string& text, const std::string& words) {
  std::smatch found;
  if (!std::regex_search(text, found, std::regex(words + "([0-9]+)"))) return 0;
  return std::stoull(found[1]);
}

TEST(WeightLimit, TooSmallBudgetSaysWhatIsEnough) {
  inference::ModelOptions options = f32_options();
  options.weight_limit = 1000;
  std::string message;
  try {
    OpenedModel opened(INGOT_SOURCE_DIR "/examples/tiny-v32", options);
    FAIL() << "opened in 1000 bytes";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kLimit);
    message = error.what();
  }
  const std::uint64_t enough = number_after(message, "take [0-9]+: ");
  const std::uint64_t all = number_after(message, "would be enough, ");
  ASSERT_GT(enough, 1000U) << message;
  ASSERT_GT(all, enough) << message;

  options.weight_limit = enough - 1;
  expect_error(ErrorCode::kLimit, {std::to_string(enough)},
               [&] { OpenedModel opened(INGOT_SOURCE_DIR "/examples/tiny-v32", options); });
  const auto ids = GoldenFile(INGOT_SOURCE_DIR "/tests/golden/tiny-v32/forward_fp8.safetensors")
                       .integers("prompt0.input_ids");
  const Recording wanted = run(OpenedModel(INGOT_SOURCE_DIR "/examples/tiny-v32").model, ids);
  options.weight_limit = enough;
  const OpenedModel least(INGOT_SOURCE_DIR "/examples/tiny-v32", options);
  EXPECT_TRUE(same_bits(run(least.model, ids), wanted));
  EXPECT_GT(least.model.expert_counters().reads, 0U);
  options.weight_limit = all;
  const OpenedModel resident(INGOT_SOURCE_DIR "/examples/tiny-v32", options);
  EXPECT_TRUE(same_bits(run(resident.model, ids), wanted));
  EXPECT_EQ(resident.model.expert_counters().misses, 0U);
}

}  // namespace
}  // namespace ingot::testing
