#include "verify/layers/layer_check.h"

#include <charconv>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/inference/model/edited_copy.h"
#include "tests/support/enough_memory.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "tests/verify/layers/example.h"
#include "tests/verify/layers/exchanged.h"

namespace ingot::testing {
namespace {

using verify::LayerAgreement;
using verify::LayersReport;
using verify::LogitAgreement;
using verify::Similarity;

void expect_equal_logits(const LogitAgreement& logits, std::size_t tokens) {
  EXPECT_EQ(logits.tokens, tokens);
  EXPECT_EQ(logits.mean_kl, 0);
  EXPECT_EQ(logits.worst_kl, 0);
  EXPECT_EQ(logits.top1, 1);
  EXPECT_EQ(logits.top5, 1);
  EXPECT_EQ(logits.max_error, 0);
  EXPECT_EQ(logits.source_nll, logits.output_nll);
  EXPECT_GT(logits.source_nll, 0);
}

TEST(LayerCheck, FindsNoDifferenceBetweenAModelAndItself) {
  const Example example;
  const auto prompts = example.few_prompts();
  const LayersReport report =
      verify::compare_layers(example.model, example.model, prompts, exact_layers());
  std::size_t tokens = 0;
  for (const auto& prompt : prompts) tokens += prompt.ids.size();
  EXPECT_EQ(report.prompts, 3U);
  EXPECT_EQ(report.tokens, tokens);
  ASSERT_EQ(report.layers.size(), 6U);
  for (std::size_t l = 0; l < 6; ++l) {
    const LayerAgreement& layer = report.layers[l];
    EXPECT_EQ(layer.layer, l);
    EXPECT_EQ(layer.is_mtp, l == 5);
    EXPECT_EQ(layer.isolated, Similarity{}) << l;
    EXPECT_EQ(layer.accumulated, Similarity{}) << l;
    EXPECT_EQ(layer.router_overlap, l == 0 ? std::nullopt : std::optional(1.0)) << l;
    EXPECT_EQ(layer.indexer_overlap, std::optional(1.0)) << l;
  }
  expect_equal_logits(report.logits, tokens);
  ASSERT_TRUE(report.mtp_logits.has_value());
  expect_equal_logits(*report.mtp_logits, tokens - 3);
}

TEST(LayerCheck, GroupedQueriesHaveNoIndexer) {
  const auto model = shard::open_source(INGOT_SOURCE_DIR "/tests/golden/arch/qwen3_moe/checkpoint");
  const auto prompts = verify::built_in_prompts(model, nullptr);
  const LayersReport report = verify::compare_layers(model, model, prompts, exact_layers());
  ASSERT_EQ(report.layers.size(), 3U);
  for (const LayerAgreement& layer : report.layers) {
    EXPECT_EQ(layer.accumulated, Similarity{});
    EXPECT_EQ(layer.indexer_overlap, std::nullopt);
  }
  EXPECT_EQ(report.layers.back().router_overlap, std::optional(1.0));
  EXPECT_FALSE(report.mtp_logits.has_value());
}

TEST(LayerCheck, SeesExchangedExpertsInTheirLayerAlone) {
  const Example example;
  const TempDir directory;
  copy_exchanged(tiny_v32(), directory / "out", "model.layers.3.mlp.experts.2.",
                 "model.layers.3.mlp.experts.7.");
  const auto output = shard::open_source(directory / "out");
  const LayersReport report =
      verify::compare_layers(example.model, output, example.few_prompts(), exact_layers());
  for (const LayerAgreement& layer : report.layers) {
    if (layer.layer == 3) {
      EXPECT_LT(layer.isolated.worst, 0.99);
      EXPECT_LT(layer.isolated.mean, 0.9995);
    } else {
      EXPECT_EQ(layer.isolated, Similarity{}) << layer.layer;
    }
    EXPECT_EQ(layer.accumulated.mean == 1, layer.layer < 3) << layer.layer;
  }
  EXPECT_GT(report.logits.mean_kl, 1e-4);
}

TEST(LayerCheck, SeesHeadAndEmbeddingFaultsInLogits) {
  const Example example;
  const EditedCopy copy(tiny_v32());
  copy.set<std::uint16_t>("model.norm.weight", 0, 0x4180);  // 16 in BF16
  const auto output = shard::open_source(copy.path());
  const LayersReport report =
      verify::compare_layers(example.model, output, example.few_prompts(), exact_layers());
  EXPECT_EQ(least_cosine(report), 1);
  EXPECT_GT(report.logits.max_error, 0.1);
}

// The least figure that the refusal names is enough, and changes nothing; nor do threads.
TEST(LayerCheck, IgnoresMemoryAndThreads) {
  const Example example;
  const auto output = shard::open_source(INGOT_SOURCE_DIR "/tests/golden/tiny-v32/bf16");
  const auto prompts = example.few_prompts();
  const LayersReport roomy = verify::compare_layers(example.model, output, prompts, {});
  EXPECT_LT(least_cosine(roomy), 1);

  verify::RunOptions tight{.threads = 2, .mem_limit = 1'000'000};
  try {
    verify::compare_layers(example.model, output, prompts, tight);
    FAIL() << "1 MB is not enough";
  } catch (const Error& error) {
    tight.mem_limit = enough_memory(error);
  }
  EXPECT_LT(tight.mem_limit, 200'000'000U);
  EXPECT_EQ(verify::compare_layers(example.model, output, prompts, tight), roomy);
}

TEST(LayerCheck, RefusesAModelOfAnotherShape) {
  const Example example;
  const auto other =
      shard::open_source(INGOT_SOURCE_DIR "/tests/golden/arch/deepseek_v3/checkpoint");
  expect_error(ErrorCode::kMismatch, {"the source has 5 layers, the output 3"}, [&] {
    verify::compare_layers(example.model, other, example.few_prompts(), exact_layers());
  });
}

TEST(LayerCheck, NamesSideAndLayerOfNaN) {
  const Example example;
  const EditedCopy copy(tiny_v32());
  // E4M3 has one NaN.
  copy.set<std::uint8_t>("model.layers.2.self_attn.o_proj.weight", 0, 0x7F);
  const auto output = shard::open_source(copy.path());
  expect_error(ErrorCode::kNonFinite, {"the output: layer 2"}, [&] {
    verify::compare_layers(example.model, output, example.few_prompts(), exact_layers());
  });
}

TEST(LayerCheck, RefusesPromptsThatTheModelCannotTake) {
  const Example example;
  const auto compare = [&](const std::vector<verify::Prompt>& prompts) {
    verify::compare_layers(example.model, example.model, prompts, exact_layers());
  };
  expect_error(ErrorCode::kInvalidArgument, {"no prompt"}, [&] { compare({}); });
  expect_error(ErrorCode::kInvalidArgument, {"prompt 1", "2048"}, [&] {
    compare({{.ids = {0, 5}}, {.ids = {2048}}});
  });
  expect_error(ErrorCode::kLimit, {"prompt 0", "1025"},
               [&] { compare({{.ids = std::vector<std::int32_t>(1025, 3)}}); });
}

TEST(LayerCheck, StopsBetweenLayers) {
  const Example example;
  verify::RunOptions options = exact_layers();
  std::uint64_t passed = 0;
  options.progress = [&](std::uint64_t n, std::uint64_t all) {
    passed = n;
    EXPECT_EQ(all, 6U);
  };
  options.stop_requested = [&] { return passed == 2; };
  expect_error(ErrorCode::kInterrupted, {"stopped"}, [&] {
    verify::compare_layers(example.model, example.model, example.few_prompts(), options);
  });
  EXPECT_EQ(passed, 2U);
}

}  // namespace
}  // namespace ingot::testing
