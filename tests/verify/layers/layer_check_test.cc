#include "verify/layers/layer_check.h"

#include <charconv>
#include <iostream>

#include "formats/base/stop_scope.h"
#include "formats/checkpoint/stored_caches.h"
#include "inference/base/matrix.h"
#include "inference/family/model_family.h"
#include "tests/support/edited_weights.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/verify/layers/example.h"
#include "tests/verify/layers/exchanged.h"
#include "verify/layers/clipped_cache.h"
#include "verify/layers/reference.h"

namespace ingot::testing {
namespace {

using namespace verify;
using Ids = std::vector<std::uint32_t>;
using formats::SchemeId;
using inference::Matrix;
using verify::LayerAgreement;

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

TEST(LayerCheck, StopsInsideALayer) {
  const Example example;
  verify::RunOptions options = exact_layers();
  int left = 30;
  options.progress = [](std::uint64_t, std::uint64_t) { FAIL() << "a layer was finished"; };
  const StopScope stop([&] { return --left < 0; }, "it ran");
  expect_error(ErrorCode::kInterrupted, {"stopped"}, [&] {
    verify::compare_layers(example.model, example.model, example.few_prompts(), options);
  });
}

TEST(LayerCheck, StopsBetweenLayers) {
  const Example example;
  verify::RunOptions options = exact_layers();
  std::uint64_t passed = 0;
  options.progress = [&](std::uint64_t n, std::uint64_t all) {
    passed = n;
    EXPECT_EQ(all, 6U);
  };
  const StopScope stop([&] { return passed == 2; }, "it ran");
  expect_error(ErrorCode::kInterrupted, {"stopped"}, [&] {
    verify::compare_layers(example.model, example.model, example.few_prompts(), options);
  });
  EXPECT_EQ(passed, 2U);
}

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

TEST(CacheScaleCheck, CountsWhatScalesCutOff) {
  const TempDir directory;
  std::filesystem::copy(INGOT_SOURCE_DIR "/tests/golden/arch/qwen3_moe/checkpoint",
                        directory / "model");
  write_text_file(directory / "model" / formats::kCacheScalesFile,
                  R"({"kv_cache": {"scaling_factor": {"0": {"0": 0.5, "2": 2}}}})");
  const auto model = formats::Checkpoint::open(directory / "model");
  const auto spec = inference::model_spec(model);
  CacheScaleCheck check(model, spec);
  Matrix keys(2, 64);  // two heads of 32 values
  for (float& value : keys.values()) value = 1;
  keys.row(0)[0] = 1000;  // a row that does not count
  keys.row(1)[0] = -232;  // 464 halves: half a step beyond 448
  keys.row(1)[1] = 232.5F;
  keys.row(1)[2] = 465;
  keys.row(1)[3] = 464;
  check.begin(0, 1);
  check.see(0, 0, keys.view());
  check.see(0, 7, keys.view());
  ASSERT_EQ(check.figures().size(), 2U);
  const ClippedCache& figure = check.figures()[0];
  EXPECT_EQ(figure.of, "keys");
  EXPECT_EQ(figure.values, 64U);
  EXPECT_EQ(figure.stored.clipped, 3U);
  EXPECT_EQ(figure.at_one.clipped, 1U);
  // 224 is the largest of scale 0.5, 448 of scale 1, where 232 and 232.5 are between 224 and 240.
  EXPECT_EQ(figure.stored.error2, 8.0 * 8 + 8.5 * 8.5 + 241.0 * 241 + 240.0 * 240);
  EXPECT_EQ(figure.at_one.error2, 8.0 * 8 + 7.5 * 7.5 + 17.0 * 17 + 16.0 * 16);
  EXPECT_EQ(check.figures()[1].values, 0U);
  check.begin(1, 0);
  EXPECT_TRUE(check.figures().empty()) << "a layer that the file does not name";
  check.begin(2, 0);
  check.see(0, 1, keys.view());
  EXPECT_EQ(check.figures()[1].stored.clipped, 1U) << "only 1000 is beyond 928";
  EXPECT_EQ(check.figures()[1].clipped(check.figures()[1].stored), 1.0 / 128);
}

// Conversions of the example stay above the floors of their kind: the source in FP32, the output as
// its scheme is run. The floors are those of docs/verify.md.

struct SchemeCase {
  const char* name;
  SchemeId to;
  bool attention_too = false;
  double cosine = 0;  ///< of every main layer, isolated, mean over tokens
  double mtp = 0;     ///< of the MTP layer: it has no residual stream to lean on
  double kl = 0;      ///< mean over tokens
};

class SchemeFloors : public ::testing::TestWithParam<SchemeCase> {};

TEST_P(SchemeFloors, HoldInEveryLayerAndForTheLogits) {
  const SchemeCase& scheme = GetParam();
  const TempDir directory;
  Conversion conversion(tiny_v32(), directory / "out");
  conversion.recipe.to = scheme.to;
  conversion.recipe.choices.search = quantize::ScaleSearch::kAmax;
  conversion.recipe.choices.quantize_attention = scheme.attention_too;
  conversion.run();

  const Example example;
  const auto output = shard::open_source(directory / "out");
  const auto report =
      verify::compare_layers(example.model, output, example.prompts, {.threads = 2});
  std::cout << fmt::format("{}: least cosine {:.6f}, mtp {:.6f}, KL {:.2e}, mtp KL {:.2e}\n",
                           scheme.name, least_cosine(report), report.layers.back().isolated.mean,
                           report.logits.mean_kl, report.mtp_logits->mean_kl);
  EXPECT_EQ(report.output_profile, "native");
  ASSERT_EQ(report.layers.size(), 6U);
  for (const LayerAgreement& layer : report.layers) {
    EXPECT_GE(layer.isolated.mean, layer.is_mtp ? scheme.mtp : scheme.cosine)
        << "layer " << layer.layer;
    EXPECT_LT(layer.isolated.mean, 1) << "something was rounded";
    EXPECT_GE(layer.indexer_overlap.value(), 0.95);
  }
  EXPECT_LE(report.logits.mean_kl, scheme.kl);
}

// The MTP layer stays in BF16 in 4-bit conversions. The logits of BF16 have no limits.
INSTANTIATE_TEST_SUITE_P(
    Kinds, SchemeFloors,
    ::testing::Values(
        SchemeCase{
            .name = "bf16", .to = SchemeId::kBf16, .cosine = 0.9995, .mtp = 0.9995, .kl = 5e-5},
        SchemeCase{.name = "fp8_channel",
                   .to = SchemeId::kFp8Channel,
                   .cosine = 0.999,
                   .mtp = 0.998,
                   .kl = 5e-5},
        SchemeCase{.name = "int8",
                   .to = SchemeId::kInt8Channel,
                   .cosine = 0.999,
                   .mtp = 0.998,
                   .kl = 5e-5},
        SchemeCase{
            .name = "nvfp4", .to = SchemeId::kNvfp4, .cosine = 0.997, .mtp = 0.9995, .kl = 5e-4},
        SchemeCase{.name = "nvfp4_attention",
                   .to = SchemeId::kNvfp4,
                   .attention_too = true,
                   .cosine = 0.994,
                   .mtp = 0.9995,
                   .kl = 5e-4},
        SchemeCase{
            .name = "mxfp4", .to = SchemeId::kMxfp4, .cosine = 0.994, .mtp = 0.9995, .kl = 1e-3}),
    [](const auto& suite) { return std::string(suite.param.name); });

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
    EXPECT_LE(layer.isolated.relative_error, 1e-5) << layer.layer;
  }
  EXPECT_EQ(report.layers.logits.tokens, report.layers.tokens);
  EXPECT_LE(report.layers.logits.max_error, 1e-4);
  EXPECT_EQ(report.greedy->equal, 1U);
}

// Also embeddings that were recorded before their factors, and layers that are visited again.
INSTANTIATE_TEST_SUITE_P(Families, ReferenceOfFamily,
                         ::testing::Values("arch/deepseek_v2", "arch/qwen3_moe",
                                           "arch_variants/glm_shared_indexer", "forward/falcon_h1",
                                           "forward/zaya", "forward/inkling2_loop",
                                           "forward/gemma3n"),
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
