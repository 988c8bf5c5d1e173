#include "verify/layers/reference.h"

#include <bit>
#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/verify/layers/example.h"
#include "tests/verify/layers/exchanged.h"

namespace ingot::testing {
namespace {

using namespace verify;
using enum ErrorCode;

const std::filesystem::path kGolden = std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden";
const verify::RunOptions kExact{.output_profile = inference::Profile::kF32};

TEST(Reference, ExampleIsMetWithinRounding) {
  const auto model = shard::open_source(tiny_v32());
  const ReferenceReport report =
      verify::compare_reference(model, kGolden / "tiny-v32/forward_fp8.safetensors",
                                {.output_profile = inference::Profile::kF32, .threads = 2});
  EXPECT_THAT(report.recorded_by, ::testing::HasSubstr("transformers deepseek_v32 float32 eager"));
  EXPECT_EQ(report.layers.source_profile, "recorded");
  EXPECT_EQ(report.layers.output_profile, "f32");
  EXPECT_EQ(report.layers.prompts, 6U);
  EXPECT_EQ(report.layers.tokens, 11U + 14 + 5 + 52 + 185 + 597);
  ASSERT_EQ(report.layers.layers.size(), 5U);
  for (const LayerAgreement& layer : report.layers.layers) {
    EXPECT_LE(layer.isolated.relative_error, 1e-5) << layer.layer;
    EXPECT_LE(layer.accumulated.relative_error, 1e-5) << layer.layer;
    EXPECT_GT(layer.isolated.relative_error, 0) << layer.layer;
  }
  EXPECT_EQ(report.layers.logits.tokens, 6U);  // the last of each prompt
  EXPECT_EQ(report.layers.logits.top1, 1);
  EXPECT_LE(report.layers.logits.mean_kl, 1e-8);
  ASSERT_TRUE(report.greedy.has_value());
  EXPECT_EQ(report.greedy->prompts.size(), 5U);  // one was recorded without an answer
  EXPECT_EQ(report.greedy->equal, 5U);
}

class ReferenceOfFamily : public ::testing::TestWithParam<const char*> {};

TEST_P(ReferenceOfFamily, IsMetWithinRounding) {
  const auto directory = kGolden / GetParam();
  const auto model = shard::open_source(directory / "checkpoint");
  const ReferenceReport report =
      verify::compare_reference(model, directory / "golden.safetensors", kExact);
  EXPECT_EQ(report.layers.prompts, 1U);
  EXPECT_GE(report.layers.layers.size(), 3U);
  for (const LayerAgreement& layer : report.layers.layers) {
    EXPECT_LE(layer.accumulated.relative_error, 1e-5) << layer.layer;
  }
  EXPECT_EQ(report.layers.logits.tokens, report.layers.tokens);
  EXPECT_LE(report.layers.logits.max_error, 1e-4);
  EXPECT_EQ(report.greedy->equal, 1U);
}

INSTANTIATE_TEST_SUITE_P(Families, ReferenceOfFamily,
                         ::testing::Values("arch/deepseek_v2", "arch/qwen3_moe",
                                           "arch_variants/glm_shared_indexer"),
                         [](const auto& suite) {
                           return std::filesystem::path(suite.param).filename().string();
                         });

TEST(Reference, ShowsTheLayerThatDiffers) {
  const TempDir directory;
  const auto from = kGolden / "arch/deepseek_v3";
  copy_exchanged(from / "checkpoint", directory / "model", "model.layers.1.mlp.experts.0.",
                 "model.layers.1.mlp.experts.1.");
  const auto model = shard::open_source(directory / "model");
  const ReferenceReport report =
      verify::compare_reference(model, from / "golden.safetensors", kExact);
  ASSERT_EQ(report.layers.layers.size(), 3U);
  EXPECT_LE(report.layers.layers[0].isolated.relative_error, 1e-5);
  EXPECT_GT(report.layers.layers[1].isolated.relative_error, 1e-3);
  EXPECT_LE(report.layers.layers[2].isolated.relative_error, 1e-5);
  EXPECT_GT(report.layers.layers[2].accumulated.relative_error, 1e-3);
}

/// Files of another make, for a model of 8 values, 2 layers and its vocabulary.
class ReferenceFile : public ::testing::Test {
 protected:
  ReferenceFile() : model_(shard::open_source(kGolden / "arch/deepseek_v3/checkpoint")) {}

  static TinyTensor ids(const std::string& name, const std::vector<std::int64_t>& values) {
    std::string data(values.size() * sizeof(std::int64_t), '\0');
    if (!values.empty()) std::memcpy(data.data(), values.data(), data.size());
    return {.name = name, .dtype = "I64", .shape = {values.size()}, .data = data};
  }
  static TinyTensor zeros(const std::string& name, const std::vector<std::uint64_t>& shape) {
    return {.name = name, .dtype = "F32", .shape = shape};
  }
  ReferenceReport compare(const std::vector<TinyTensor>& tensors) {
    write_bytes(directory_ / "recorded.safetensors", safetensors_bytes(tensors));
    return verify::compare_reference(model_, directory_ / "recorded.safetensors", kExact);
  }
  void expect_refusal(ErrorCode code, std::initializer_list<std::string> fragments,
                      const std::vector<TinyTensor>& tensors) {
    expect_error(code, fragments, [&] { compare(tensors); });
  }

  TempDir directory_;
  formats::Checkpoint model_;
};

TEST_F(ReferenceFile, MayHoldNothingButIds) {
  const ReferenceReport report = compare({ids("input_ids", {1, 2, 3})});
  EXPECT_EQ(report.layers.tokens, 3U);
  EXPECT_TRUE(report.layers.layers.empty());
  EXPECT_EQ(report.layers.logits.tokens, 0U);
  EXPECT_FALSE(report.greedy.has_value());
  EXPECT_EQ(report.recorded_by, "an unnamed program");
}

TEST_F(ReferenceFile, MayHoldSomeLayersOfSomePrompts) {
  const ReferenceReport report = compare({ids("b.input_ids", {1, 2, 3}), ids("a.input_ids", {4, 5}),
                                          zeros("b.hidden.2", {3, 128}), zeros("other", {3})});
  EXPECT_EQ(report.layers.prompts, 2U);
  ASSERT_EQ(report.layers.layers.size(), 1U);
  EXPECT_EQ(report.layers.layers[0].layer, 1U);
  EXPECT_EQ(report.layers.layers[0].isolated, report.layers.layers[0].accumulated);
  EXPECT_EQ(report.layers.layers[0].isolated.mean, 0);  // zeros are like nothing
  EXPECT_EQ(report.layers.layers[0].isolated.worst_prompt, 1U);
}

// The recorded gap decides on the first token, the difference of the first logits later.
TEST_F(ReferenceFile, ShowsWhereAnswersPart) {
  const TinyTensor prompt = ids("input_ids", {1, 2, 3});
  const ReferenceReport other = compare({prompt, ids("greedy", {9, 9, 9})});
  const auto& parted = other.greedy.value().prompts.at(0);
  EXPECT_EQ(parted.output.size(), 3U);
  EXPECT_EQ(parted.first_difference, std::optional<std::size_t>(0));
  EXPECT_EQ(parted.limit, 1.0);
  std::vector<std::int64_t> own(parted.output.begin(), parted.output.end());

  EXPECT_EQ(compare({prompt, ids("greedy", own)}).greedy->equal, 1U);
  own[2] = (own[2] + 1) % 512;
  const auto later = compare({prompt, ids("greedy", own), zeros("logits_last", {512})});
  EXPECT_EQ(later.greedy->prompts[0].first_difference, std::optional<std::size_t>(2));
  // Zeros prefer token 0, which the model did not choose, so they taught nothing.
  EXPECT_EQ(later.greedy->prompts[0].limit, 1.0);
}

TEST_F(ReferenceFile, IsRefusedByNameWhenItIsBad) {
  const TinyTensor prompt = ids("input_ids", {1, 2, 3});
  expect_refusal(kCorrupt, {"recorded.safetensors", "input_ids"}, {zeros("something", {4})});
  expect_refusal(kCorrupt, {"p.hidden.1", "without 'p.input_ids'"},
                 {prompt, zeros("p.hidden.1", {3, 128})});
  expect_refusal(kCorrupt, {"'input_ids'", "token ids"}, {zeros("input_ids", {3})});
  expect_refusal(kCorrupt, {"'input_ids'", "512"}, {ids("input_ids", {1, 512})});
  expect_refusal(kCorrupt, {"'input_ids'", "no token"}, {ids("input_ids", {})});
  expect_refusal(kCorrupt, {"'greedy'", "-1"}, {prompt, ids("greedy", {-1})});
  expect_refusal(kCorrupt, {"'hidden.1'", "F16"},
                 {prompt, {.name = "hidden.1", .dtype = "F16", .shape = {3, 128}}});
  expect_refusal(kShapeMismatch, {"'hidden.1'", "[3, 128]"}, {prompt, zeros("hidden.1", {4, 128})});
  expect_refusal(kShapeMismatch, {"'hidden.4'", "3 layers"}, {prompt, zeros("hidden.4", {3, 128})});
  expect_refusal(kShapeMismatch, {"'logits'"}, {prompt, zeros("logits", {3, 500})});
  expect_refusal(kShapeMismatch, {"'logits_last'"}, {prompt, zeros("logits_last", {3, 512})});
  TinyTensor infinite = zeros("hidden.1", {3, 128});
  infinite.data = std::string(std::size_t{3} * 128 * 4, '\x7F');  // 3.4e38 is finite
  infinite.data.replace(4, 4, std::string("\0\0\x80\x7F", 4));
  expect_refusal(kNonFinite, {"'hidden.1'"}, {prompt, infinite});
}

}  // namespace
}  // namespace ingot::testing
