// Multi-token prediction: drafts chain the MTP layer and leave no trace.

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

class Draft : public ::testing::Test {
 protected:
  Draft()
      : opened_(INGOT_SOURCE_DIR "/examples/tiny-v32"),
        ids_(GoldenFile(INGOT_SOURCE_DIR "/tests/golden/tiny-v32/forward_fp8.safetensors")
                 .integers("prompt3.input_ids")),
        cache_(opened_.model.make_cache(KvFormat::kF32, 128)),
        sequence_(cache_.add()) {
    Recording recording;
    feed(model(), cache_, sequence_, ids_, ids_.size(), recording);
    next_ =
        static_cast<std::int32_t>(argmax(std::span(recording.logits).last(model().spec().vocab)));
    normed_ = Matrix(ids_.size(), model().spec().hidden);
    std::ranges::copy(recording.normed, normed_.values().begin());
    // Entries of all but the last token, whose next one is what the draft starts with.
    static_cast<void>(warm(0, ids_.size() - 1));
  }

  [[nodiscard]] const inference::Model& model() const { return opened_.model; }
  [[nodiscard]] std::uint32_t last() const { return static_cast<std::uint32_t>(ids_.size() - 1); }

  [[nodiscard]] Matrix states(std::size_t first, std::size_t n) const {
    Matrix part(n, normed_.cols());
    std::copy_n(normed_.row(first).begin(), part.values().size(), part.values().begin());
    return part;
  }
  /// Entries [first, first + n) of the MTP layer, from true hidden states.
  Matrix warm(std::size_t first, std::size_t n) {
    std::vector<Row> rows;
    for (std::size_t i = first; i < first + n; ++i) {
      rows.push_back(
          {.sequence = sequence_,
           .position = static_cast<std::uint32_t>(i),
           .token = i + 1 < ids_.size() ? static_cast<std::int32_t>(ids_[i + 1]) : next_});
    }
    return model().mtp(states(first, n), rows, cache_);
  }
  std::vector<std::int32_t> draft(std::size_t k) {
    return model().draft(k, states(last(), 1), sequence_, last(), next_, cache_);
  }

  OpenedModel opened_;
  std::vector<std::int64_t> ids_;
  ModelCache cache_;
  SequenceId sequence_;
  std::int32_t next_ = 0;
  Matrix normed_;
};

TEST_F(Draft, StartsWithTheMtpLayersBestToken) {
  const auto drafted = draft(1);
  ASSERT_EQ(drafted.size(), 1U);
  EXPECT_EQ(drafted[0], argmax(model().head(warm(last(), 1)).row(0)));
}

TEST_F(Draft, FeedsItsStateAndItsTokenBack) {
  const auto drafted = draft(3);
  ASSERT_EQ(drafted.size(), 3U);
  Matrix state = states(last(), 1);
  std::int32_t token = next_;
  for (std::uint32_t i = 0; i < 3; ++i) {
    const Row row{.sequence = sequence_, .position = last() + i, .token = token};
    state = model().mtp(state, {&row, 1}, cache_);
    token = static_cast<std::int32_t>(argmax(model().head(state).row(0)));
    EXPECT_EQ(drafted[i], token) << i;
  }
}

TEST_F(Draft, LeavesBothCachesAsTheyWere) {
  const std::size_t mtp = cache_.mtp().length(sequence_), main = cache_.main().length(sequence_);
  EXPECT_EQ(mtp, ids_.size() - 1);
  draft(4);
  EXPECT_EQ(cache_.mtp().length(sequence_), mtp);
  EXPECT_EQ(cache_.main().length(sequence_), main);
  EXPECT_TRUE(draft(0).empty());
  EXPECT_EQ(cache_.mtp().length(sequence_), mtp);
}

TEST_F(Draft, IsRepeatableAndExtendable) {
  const auto three = draft(3);
  EXPECT_EQ(draft(3), three);
  const auto five = draft(5);
  EXPECT_EQ(std::vector(five.begin(), five.begin() + 3), three);
}

// True hidden states replace what the draft had put there.
TEST_F(Draft, DoesNotChangeWhatComesAfterIt) {
  const Matrix before = warm(last(), 1);
  cache_.mtp().truncate(sequence_, last());
  draft(3);
  EXPECT_TRUE(same_bits(warm(last(), 1).values(), before.values()));
}

TEST_F(Draft, WithoutRoomLeavesTheCacheUnchanged) {
  ModelCache small = model().make_cache(KvFormat::kF32, 64);
  std::swap(small, cache_);
  Recording recording;
  sequence_ = cache_.add();
  feed(model(), cache_, sequence_, ids_, ids_.size(), recording);
  static_cast<void>(warm(0, ids_.size() - 1));
  expect_error(ErrorCode::kLimit, {"no room"}, [&] { draft(30); });
  EXPECT_EQ(cache_.mtp().length(sequence_), ids_.size() - 1);
}

TEST_F(Draft, NeedsAnMtpLayer) {
  const OpenedModel without(INGOT_SOURCE_DIR "/tests/golden/arch/deepseek_v3/checkpoint");
  EXPECT_EQ(without.model.spec().mtp_layers, 1U) << "its config promises one";
  EXPECT_FALSE(without.model.has_mtp());
  ModelCache cache = without.model.make_cache(KvFormat::kF32, 64);
  const SequenceId sequence = cache.add();
  const Matrix state(1, without.model.spec().hidden);
  expect_error(ErrorCode::kUnsupported, {"no layer for multi-token prediction"},
               [&] { static_cast<void>(without.model.draft(1, state, sequence, 0, 0, cache)); });
}

TEST_F(Draft, MayBeLeftOut) {
  inference::ModelOptions options = f32_options();
  options.without_mtp = true;
  const OpenedModel without(INGOT_SOURCE_DIR "/examples/tiny-v32", options);
  EXPECT_FALSE(without.model.has_mtp());
  EXPECT_LT(without.model.bytes_read(), model().bytes_read());
  EXPECT_LT(without.model.cache_bytes_per_token(KvFormat::kF32),
            model().cache_bytes_per_token(KvFormat::kF32));
  EXPECT_TRUE(same_bits(run(without.model, ids_), run(model(), ids_)));
}

}  // namespace
}  // namespace ingot::testing
