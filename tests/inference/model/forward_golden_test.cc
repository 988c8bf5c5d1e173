// The forward pass in FP32 against activations that Hugging Face transformers recorded.

#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/inference/model/golden_file.h"
#include "tests/inference/model/runner.h"

namespace ingot::testing {
namespace {

using inference::Matrix;

constexpr std::size_t kPrompts = 6;

struct Case {
  const char* name;
  std::string checkpoint, golden;
};

class ForwardGolden : public ::testing::TestWithParam<Case> {
 protected:
  ForwardGolden()
      : opened_(std::string(INGOT_SOURCE_DIR) + GetParam().checkpoint),
        golden_(std::string(INGOT_SOURCE_DIR) + GetParam().golden) {}

  [[nodiscard]] const inference::Model& model() const { return opened_.model; }

  OpenedModel opened_;
  GoldenFile golden_;
};

TEST_P(ForwardGolden, EveryLayerAndTheLogitsAgreeWithinRounding) {
  for (std::size_t p = 0; p < kPrompts; ++p) {
    const std::string prompt = fmt::format("prompt{}.", p);
    SCOPED_TRACE(prompt);
    const auto ids = golden_.integers(prompt + "input_ids");
    const Recording is = run(model(), ids);
    for (std::size_t l = 0; l <= model().spec().layers; ++l) {
      EXPECT_LE(
          relative_error(is.hidden.at(l), golden_.floats(fmt::format("{}hidden.{}", prompt, l))),
          1e-5)
          << "hidden " << l;
    }
    const std::size_t vocab = model().spec().vocab;
    EXPECT_LE(
        relative_error(std::span(is.logits).last(vocab), golden_.floats(prompt + "logits_last")),
        1e-5);
    const auto nll = golden_.floats(prompt + "nll");
    const auto best = golden_.integers(prompt + "argmax");
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto logits = std::span(is.logits).subspan(i * vocab, vocab);
      if (i < nll.size()) {
        EXPECT_NEAR(negative_log_likelihood(logits, ids[i + 1]), double{nll[i]}, 1e-4) << i;
      }
      if (top_gap(logits) > 1e-4) {
        EXPECT_EQ(argmax(logits), best[i]) << i;
      }
    }
    EXPECT_EQ(is.n_selected > 0, ids.size() > model().spec().indexer->topk);
  }
}

TEST_P(ForwardGolden, ChoosesTheSameExpertsAndWeights) {
  for (std::size_t p = 0; p < kPrompts; ++p) {
    const std::string prompt = fmt::format("prompt{}.", p);
    const Recording is = run(model(), golden_.integers(prompt + "input_ids"));
    for (const auto& [layer, experts] : is.experts) {
      const auto wanted = golden_.integers(fmt::format("{}experts.{}", prompt, layer));
      EXPECT_EQ(std::vector<std::int64_t>(experts.begin(), experts.end()), wanted)
          << prompt << layer;
      const auto weights = golden_.floats(fmt::format("{}expert_weights.{}", prompt, layer));
      ASSERT_EQ(weights.size(), is.expert_weights.at(layer).size());
      for (std::size_t i = 0; i < weights.size(); ++i) {
        ASSERT_NEAR(is.expert_weights.at(layer)[i], weights[i], 1e-5) << prompt << layer;
      }
    }
    EXPECT_EQ(is.experts.size(), 4U);
  }
}

TEST_P(ForwardGolden, GreedyAnswerIsTheSame) {
  for (std::size_t p = 0; p < kPrompts; ++p) {
    const std::string prompt = fmt::format("prompt{}.", p);
    if (!golden_.has(prompt + "greedy")) continue;
    EXPECT_EQ(greedy(model(), golden_.integers(prompt + "input_ids"), 160, 1),
              golden_.integers(prompt + "greedy"))
        << prompt;
  }
}

TEST_P(ForwardGolden, TheMtpLayerPredictsTheTokenAfterNext) {
  ASSERT_TRUE(model().has_mtp());
  for (std::size_t p = 0; p < kPrompts; ++p) {
    const std::string prompt = fmt::format("prompt{}.", p);
    if (!golden_.has(prompt + "mtp_logits_last")) continue;
    const auto ids = golden_.integers(prompt + "input_ids");
    inference::ModelCache cache = model().make_cache(inference::KvFormat::kF32, ids.size());
    Recording is;
    const inference::SequenceId sequence = cache.add();
    feed(model(), cache, sequence, ids, ids.size(), is);
    // The last entry pairs the state before the last with the last token.
    Matrix normed(ids.size() - 1, model().spec().hidden);
    std::copy_n(is.normed.begin(), normed.values().size(), normed.values().begin());
    std::vector<inference::Row> rows;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      rows.push_back({.sequence = sequence,
                      .position = static_cast<std::uint32_t>(i),
                      .token = static_cast<std::int32_t>(ids[i + 1])});
    }
    const Matrix out = model().mtp(normed, rows, cache);
    Matrix last(1, out.cols());
    std::ranges::copy(out.row(out.rows() - 1), last.row(0).begin());
    EXPECT_LE(
        relative_error(model().head(last).values(), golden_.floats(prompt + "mtp_logits_last")),
        1e-4)
        << prompt;
  }
}

INSTANTIATE_TEST_SUITE_P(TinyV32, ForwardGolden,
                         ::testing::Values(Case{"fp8", "/examples/tiny-v32",
                                                "/tests/golden/tiny-v32/forward_fp8.safetensors"},
                                           Case{"bf16", "/tests/golden/tiny-v32/bf16",
                                                "/tests/golden/tiny-v32/forward_bf16.safetensors"}),
                         [](const auto& suite) { return std::string(suite.param.name); });

class FamilyGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(FamilyGolden, EveryLayerAllLogitsAndGreedyTokensAgree) {
  const std::string directory = std::string(INGOT_SOURCE_DIR) + "/tests/golden/" + GetParam();
  const OpenedModel opened(directory + "/checkpoint");
  const GoldenFile golden(directory + "/golden.safetensors");
  const auto ids = golden.integers("input_ids");
  const Recording is = run(opened.model, ids);
  for (std::size_t l = 0; l <= opened.model.spec().layers; ++l) {
    EXPECT_LE(relative_error(is.hidden.at(l), golden.floats(fmt::format("hidden.{}", l))), 1e-5)
        << "hidden " << l;
  }
  EXPECT_LE(relative_error(is.logits, golden.floats("logits")), 1e-5);
  EXPECT_EQ(greedy(opened.model, ids, 20, -1), golden.integers("greedy"));
}

INSTANTIATE_TEST_SUITE_P(
    Arch, FamilyGolden,
    ::testing::Values("arch/deepseek_v2", "arch/deepseek_v3", "arch/glm_moe_dsa", "arch/qwen3_moe",
                      "arch_variants/deepseek_v2_grouped", "arch_variants/glm_shared_indexer",
                      "arch_variants/kimi_like", "arch_variants/qwen3_moe_tied"),
    [](const auto& suite) {
      std::string name = suite.param;
      std::ranges::replace(name, '/', '_');
      return name;
    });

}  // namespace
}  // namespace ingot::testing
