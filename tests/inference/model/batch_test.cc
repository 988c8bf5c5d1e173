// A sequence's result does not depend on what else is in the step or was in the cache.

#include <gtest/gtest.h>

#include "tests/inference/model/golden_file.h"
#include "tests/inference/model/runner.h"

namespace ingot::testing {
namespace {

using inference::AttentionForm;
using inference::KvFormat;
using inference::Matrix;
using inference::ModelCache;
using inference::Row;
using inference::SequenceId;

using Tokens = std::vector<std::int64_t>;

/// Tokens of one sequence that go into one step.
struct Share {
  std::size_t sequence, first, count;
};

class Batch : public ::testing::TestWithParam<const char*> {
 protected:
  Batch() {
    const GoldenFile tiny(INGOT_SOURCE_DIR "/tests/golden/tiny-v32/forward_fp8.safetensors");
    for (const char* prompt : {"prompt4.", "prompt0.", "prompt3."}) {
      prompts_.push_back(tiny.integers(std::string(prompt) + "input_ids"));
      for (auto& id : prompts_.back()) id %= 512;  // of the smallest vocabulary
    }
    prompts_[0].resize(72);  // beyond every index_topk
    prompts_[2].resize(30);
  }
  [[nodiscard]] static std::filesystem::path directory() {
    return std::filesystem::path(INGOT_SOURCE_DIR) / GetParam();
  }

  [[nodiscard]] std::vector<Row> rows_of(std::span<const Share> shares,
                                         std::span<const SequenceId> ids) const {
    std::vector<Row> rows;
    for (const Share& share : shares) {
      for (std::size_t i = share.first; i < share.first + share.count; ++i) {
        rows.push_back({.sequence = ids[share.sequence],
                        .position = static_cast<std::uint32_t>(i),
                        .token = static_cast<std::int32_t>(prompts_[share.sequence].at(i)),
                        .logits = true});
      }
    }
    return rows;
  }

  /// Logits of every sequence, all its rows one after the other, when the steps are run together
  /// and when every sequence has a cache of its own.
  using Logits = std::vector<std::vector<float>>;
  [[nodiscard]] Logits together(const inference::Model& model,
                                std::span<const std::vector<Share>> steps) const {
    ModelCache cache = model.make_cache(KvFormat::kF32, 1024);
    std::vector<SequenceId> ids;
    for (std::size_t i = 0; i < prompts_.size(); ++i) ids.push_back(cache.add());
    Logits logits(prompts_.size());
    for (const auto& step : steps) {
      const Matrix out = model.step(rows_of(step, ids), cache);
      std::size_t at = 0;
      for (const Share& share : step) {
        for (std::size_t i = 0; i < share.count; ++i, ++at) {
          logits[share.sequence].insert(logits[share.sequence].end(), out.row(at).begin(),
                                        out.row(at).end());
        }
      }
    }
    return logits;
  }
  [[nodiscard]] Logits alone(const inference::Model& model,
                             std::span<const std::vector<Share>> steps) const {
    Logits logits(prompts_.size());
    for (std::size_t s = 0; s < prompts_.size(); ++s) {
      std::vector<std::vector<Share>> own;
      for (const auto& step : steps) {
        for (const Share& share : step) {
          if (share.sequence == s) own.push_back({share});
        }
      }
      logits[s] = together(model, own)[s];
    }
    return logits;
  }

  std::vector<Tokens> prompts_;
};

// Prompts, parts of prompts and single tokens side by side, in changing order.
TEST_P(Batch, SequencesEqualEachAlone) {
  const std::vector<std::vector<Share>> steps = {{{0, 0, 62}, {1, 0, 11}, {2, 0, 3}},
                                                 {{2, 3, 20}, {0, 62, 1}},
                                                 {{0, 63, 1}, {2, 23, 1}},
                                                 {{2, 24, 6}, {0, 64, 8}}};
  for (const AttentionForm form :
       {AttentionForm::kAuto, AttentionForm::kNaive, AttentionForm::kAbsorbed}) {
    const OpenedModel opened(directory(), f32_options(form));
    const Logits a = together(opened.model, steps), b = alone(opened.model, steps);
    for (std::size_t s = 0; s < a.size(); ++s) {
      EXPECT_EQ(a[s].size(), prompts_[s].size() * opened.model.spec().vocab);
      EXPECT_TRUE(same_bits(a[s], b[s])) << "sequence " << s;
    }
  }
}

TEST_P(Batch, NothingGivesNothing) {
  const OpenedModel opened(directory());
  ModelCache cache = opened.model.make_cache(KvFormat::kF32, 64);
  Matrix normed;
  const Matrix logits = opened.model.step({}, cache, {}, &normed);
  EXPECT_EQ(logits.rows(), 0U);
  EXPECT_EQ(logits.cols(), opened.model.spec().vocab);
  EXPECT_EQ(normed.rows(), 0U);
  if (opened.model.has_mtp()) {
    EXPECT_EQ(opened.model.mtp(normed, {}, cache).rows(), 0U);
  }
}

TEST_P(Batch, GivesLogitsForTheRowsThatWantThem) {
  const OpenedModel opened(directory());
  const auto shares = std::vector<Share>{{1, 0, 11}};
  ModelCache cache = opened.model.make_cache(KvFormat::kF32, 256);
  const std::vector<SequenceId> ids = {cache.add(), cache.add(), cache.add()};
  std::vector<Row> rows = rows_of(shares, ids);
  const Matrix all = opened.model.step(rows, cache);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i].logits = i == 2 || i == 10;
  Matrix normed;
  const Matrix two = opened.model.step(rows, cache, {}, &normed);  // the same positions again
  ASSERT_EQ(two.rows(), 2U);
  EXPECT_EQ(normed.rows(), rows.size());
  EXPECT_TRUE(same_bits(two.row(0), all.row(2)));
  EXPECT_TRUE(same_bits(two.row(1), all.row(10)));
}

TEST_P(Batch, ForgetsWhatWasInTheCacheBefore) {
  const OpenedModel opened(directory());
  const Recording fresh = run(opened.model, prompts_[2]);
  ModelCache cache = opened.model.make_cache(KvFormat::kF32, 128);
  SequenceId sequence = cache.add();
  Recording other;
  feed(opened.model, cache, sequence, prompts_[0], 72, other);
  cache.free(sequence);
  sequence = cache.add();
  Recording again;
  feed(opened.model, cache, sequence, prompts_[2], 60, again);
  EXPECT_TRUE(same_bits(again, fresh));
}

// As after a rejected draft: rows at positions that are taken replace what stood there.
TEST_P(Batch, OverwritesPositionsThatAreFedAgain) {
  const OpenedModel opened(directory());
  const Recording straight = run(opened.model, prompts_[0], 30);
  ModelCache cache = opened.model.make_cache(KvFormat::kF32, 128);
  const SequenceId sequence = cache.add();
  Recording is, wrong;
  feed(opened.model, cache, sequence, std::span(prompts_[0]).first(60), 30, is);
  Tokens mistaken(prompts_[0].begin(), prompts_[0].begin() + 60);
  mistaken.resize(68, 7);
  feed(opened.model, cache, sequence, mistaken, 30, wrong);
  feed_from(60, opened.model, cache, sequence, prompts_[0], 30, is);
  EXPECT_TRUE(same_bits(is, straight));
}

INSTANTIATE_TEST_SUITE_P(Families, Batch,
                         ::testing::Values("examples/tiny-v32",
                                           "tests/golden/arch/deepseek_v2/checkpoint",
                                           "tests/golden/arch/glm_moe_dsa/checkpoint",
                                           "tests/golden/arch/qwen3_moe/checkpoint"),
                         [](const auto& suite) {
                           const std::filesystem::path path = suite.param;
                           const auto name = path.filename() == "checkpoint"
                                                 ? path.parent_path().filename().string()
                                                 : std::string("tiny_v32");
                           return name;
                         });

}  // namespace
}  // namespace ingot::testing
