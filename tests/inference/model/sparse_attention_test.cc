// The lightning indexer as part of the model: where it must change nothing, its choice between
// equals, and layers that share a choice.

#include <numeric>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/inference/model/edited_copy.h"
#include "tests/inference/model/golden_file.h"
#include "tests/inference/model/runner.h"

namespace ingot::testing {
namespace {

using inference::AttentionForm;

constexpr std::size_t kTopk = 16;

class SparseAttention : public ::testing::Test {
 protected:
  SparseAttention()
      : copy_(INGOT_SOURCE_DIR "/examples/tiny-v32"),
        ids_(GoldenFile(INGOT_SOURCE_DIR "/tests/golden/tiny-v32/forward_fp8.safetensors")
                 .integers("prompt4.input_ids")) {
    ids_.resize(40);
    copy_.config({{"/index_topk", kTopk}});
  }

  [[nodiscard]] Recording with_topk(std::size_t topk, AttentionForm form) const {
    copy_.config({{"/index_topk", topk}});
    return run(OpenedModel(copy_.path(), f32_options(form)).model, ids_);
  }

  /// The model without an indexer: DeepSeek-V3, whose grammar does not know one.
  [[nodiscard]] static Recording dense(std::span<const std::int64_t> ids, AttentionForm form) {
    const EditedCopy copy(INGOT_SOURCE_DIR "/examples/tiny-v32");
    copy.config({{"/model_type", "deepseek_v3"}, {"/architectures", {"DeepseekV3ForCausalLM"}}});
    const std::vector<Pattern> indexer = {Pattern("*.indexer.*")};
    const OpenedModel opened(shard::open_source(copy.path(), {.open = {.allow_unknown = &indexer}}),
                             f32_options(form));
    EXPECT_EQ(opened.model.spec().indexer(), nullptr);
    return run(opened.model, ids);
  }

  /// Selections of a layer, by row.
  [[nodiscard]] static std::vector<std::vector<std::uint32_t>> of_layer(const Recording& recording,
                                                                        std::size_t layer) {
    std::vector<std::vector<std::uint32_t>> rows;
    for (const auto& [key, positions] : recording.selected) {
      if (key.first == layer) rows.push_back(positions);
    }
    return rows;
  }

  EditedCopy copy_;
  std::vector<std::int64_t> ids_;
};

TEST_F(SparseAttention, WithoutALimitEqualsDense) {
  for (const AttentionForm form : {AttentionForm::kNaive, AttentionForm::kAbsorbed}) {
    const Recording wanted = dense(ids_, form);
    for (const std::size_t topk : {ids_.size(), std::size_t{1024}}) {
      const Recording is = with_topk(topk, form);
      EXPECT_EQ(is.n_selected, 0U);
      EXPECT_TRUE(same_bits(is, wanted)) << topk;
    }
  }
}

TEST_F(SparseAttention, IsDenseForRowsWithinTopk) {
  const Recording wanted = dense(ids_, AttentionForm::kNaive);
  const Recording is = with_topk(kTopk, AttentionForm::kNaive);
  const std::size_t width = is.hidden.at(5).size() / ids_.size();
  const auto rows = [&](const Recording& recording, std::size_t first, std::size_t n) {
    return std::span(recording.hidden.at(5)).subspan(first * width, n * width);
  };
  EXPECT_TRUE(same_bits(rows(is, 0, kTopk), rows(wanted, 0, kTopk)));
  EXPECT_FALSE(same_bits(rows(is, kTopk, 1), rows(wanted, kTopk, 1)));
  EXPECT_EQ(is.n_selected, (ids_.size() - kTopk) * 5);
}

TEST_F(SparseAttention, TakesTopkOfWhatARowSees) {
  const Recording is = with_topk(kTopk, AttentionForm::kAuto);
  bool skips = false;
  for (const auto& [key, positions] : is.selected) {
    ASSERT_EQ(positions.size(), kTopk);
    EXPECT_TRUE(std::ranges::is_sorted(positions));
    EXPECT_EQ(std::ranges::adjacent_find(positions), positions.end());
    EXPECT_LE(positions.back(), key.second);
    skips = skips || positions.back() != positions.size() - 1;
  }
  EXPECT_TRUE(skips);
}

// Head weights of zero make every score exactly zero.
TEST_F(SparseAttention, TakesTheLowerPositionsOfEqualScores) {
  for (std::size_t layer = 0; layer < 5; ++layer) {
    copy_.fill_zero(fmt::format("model.layers.{}.self_attn.indexer.weights_proj.weight", layer));
  }
  std::vector<std::uint32_t> first(kTopk);
  std::iota(first.begin(), first.end(), 0U);
  for (const std::size_t chunk : {ids_.size(), std::size_t{1}}) {
    const Recording is = run(OpenedModel(copy_.path()).model, ids_, chunk);
    EXPECT_EQ(is.n_selected, (ids_.size() - kTopk) * 5);
    for (const auto& [key, positions] : is.selected) EXPECT_EQ(positions, first);
  }
}

TEST_F(SparseAttention, SharedLayersReuseTheLastChoice) {
  const Recording own = run(OpenedModel(copy_.path()).model, ids_);
  copy_.config({{"/indexer_types", {"full", "shared", "shared", "full", "shared"}}});
  for (const AttentionForm form : {AttentionForm::kNaive, AttentionForm::kAbsorbed}) {
    const Recording is = run(OpenedModel(copy_.path(), f32_options(form)).model, ids_);
    EXPECT_FALSE(of_layer(is, 0).empty());
    EXPECT_EQ(of_layer(is, 1), of_layer(is, 0));
    EXPECT_EQ(of_layer(is, 2), of_layer(is, 0));
    EXPECT_NE(of_layer(is, 3), of_layer(is, 0));
    EXPECT_EQ(of_layer(is, 4), of_layer(is, 3));
    if (form == AttentionForm::kNaive) {
      EXPECT_EQ(of_layer(is, 0), of_layer(own, 0));
    }
    EXPECT_TRUE(same_bits(is.hidden.at(0), own.hidden.at(0)));
    EXPECT_FALSE(same_bits(is.hidden.at(2), own.hidden.at(2)));
  }
}

TEST_F(SparseAttention, SharedLayersCacheNoIndexKeys) {
  const auto bytes = [&] { return cache_bytes_per_token(OpenedModel(copy_.path()).model); };
  const std::uint64_t all_own = bytes();
  copy_.config({{"/indexer_types", {"full", "shared", "shared", "full", "shared"}}});
  EXPECT_EQ(all_own - bytes(), 3U * 128 * sizeof(float));
}

TEST_F(SparseAttention, LayersMayBeSharedByARule) {
  copy_.config({{"/index_topk_freq", 2}, {"/index_skip_topk_offset", 1}});
  const Recording by_rule = run(OpenedModel(copy_.path()).model, ids_);
  copy_.config({{"/indexer_types", {"full", "shared", "full", "shared", "full"}}});
  EXPECT_TRUE(same_bits(run(OpenedModel(copy_.path()).model, ids_), by_rule));
  EXPECT_EQ(of_layer(by_rule, 1), of_layer(by_rule, 0));
  EXPECT_EQ(of_layer(by_rule, 3), of_layer(by_rule, 2));
  EXPECT_NE(of_layer(by_rule, 2), of_layer(by_rule, 0));
}

// A sequence that grows beyond topk step by step reads index keys from before it had to choose.
TEST_F(SparseAttention, ReadsKeysCachedBeforeItChose) {
  const Recording whole = with_topk(kTopk, AttentionForm::kAbsorbed);
  const Recording grown =
      run(OpenedModel(copy_.path(), f32_options(AttentionForm::kAbsorbed)).model, ids_, 9);
  EXPECT_EQ(grown.n_selected, whole.n_selected);
  EXPECT_TRUE(same_bits(grown, whole));
}

}  // namespace
}  // namespace ingot::testing
