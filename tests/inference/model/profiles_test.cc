// Profile native: quantized activations, as the target hardware would have them, against FP32.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/convert/conversion.h"
#include "tests/inference/model/golden_file.h"
#include "tests/inference/model/runner.h"
#include "tests/support/temp_dir.h"

namespace ingot::testing {

using formats::Activations;
using formats::SchemeId;
using inference::AttentionForm;
using inference::Matrix;
using inference::Profile;

// Profile bf16 against FP32 activations that Hugging Face transformers recorded.

namespace {

struct Case {
  const char* name;
  std::string checkpoint, golden;
};

class Bf16 : public ::testing::TestWithParam<Case> {
 protected:
  Bf16()
      : directory_(std::string(INGOT_SOURCE_DIR) + GetParam().checkpoint),
        opened_(directory_, {.profile = Profile::kBf16, .threads = 2}),
        golden_(std::string(INGOT_SOURCE_DIR) + GetParam().golden) {}

  std::filesystem::path directory_;
  OpenedModel opened_;
  GoldenFile golden_;
};

TEST_P(Bf16, LayersAloneAreCloseToTheRecordedOnes) {
  for (const std::size_t p : {3U, 4U}) {
    for (std::size_t l = 0; l < opened_.model.spec().layers; ++l) {
      const auto hidden = [&](std::size_t i) {
        return golden_.matrix(fmt::format("prompt{}.hidden.{}", p, i));
      };
      const auto cosines = row_cosines(isolated_layer(opened_.model, l, hidden(l)), hidden(l + 1));
      EXPECT_GE(median(cosines), 0.9999) << "prompt " << p << " layer " << l;
      EXPECT_GE(mean(cosines), 0.9995) << "prompt " << p << " layer " << l;
    }
  }
}

TEST_P(Bf16, StatesBetweenLayersAreBf16Numbers) {
  const Recording is = run(opened_.model, golden_.integers("prompt1.input_ids"));
  for (const auto& [index, values] : is.hidden) {
    for (const float value : values) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(value) & 0xFFFFU, 0U) << "hidden " << index;
    }
  }
  bool has_fp32_logits = false;
  for (const float value : is.logits) {
    has_fp32_logits = has_fp32_logits || (std::bit_cast<std::uint32_t>(value) & 0xFFFFU) != 0;
  }
  EXPECT_TRUE(has_fp32_logits) << "logits stay in FP32";
}

// Up to where FP32 itself hesitates between two tokens.
TEST_P(Bf16, GreedyTokensMatchWhileChoicesAreClear) {
  const OpenedModel exact(directory_);
  const std::size_t vocab = exact.model.spec().vocab;
  std::size_t n_compared = 0;
  for (std::size_t p = 0; p < 4; ++p) {
    const std::string prompt = fmt::format("prompt{}.", p);
    if (!golden_.has(prompt + "greedy")) continue;
    const auto ids = golden_.integers(prompt + "input_ids");
    const auto wanted = golden_.integers(prompt + "greedy");
    std::vector<std::int64_t> all = ids;
    all.insert(all.end(), wanted.begin(), wanted.end());
    const Recording recording = run(exact.model, all);
    std::size_t clear = 0;
    while (clear < wanted.size() &&
           top_gap(std::span(recording.logits).subspan((ids.size() - 1 + clear) * vocab, vocab)) >=
               0.25) {
      ++clear;
    }
    auto is = greedy(opened_.model, ids, clear, 1);
    is.resize(std::min(is.size(), clear));
    EXPECT_EQ(is, std::vector(wanted.begin(), wanted.begin() + static_cast<std::ptrdiff_t>(clear)))
        << prompt;
    n_compared += clear;
  }
  EXPECT_GE(n_compared, 10U);
}

TEST_P(Bf16, IsNotF32) {
  const auto ids = golden_.integers("prompt1.input_ids");
  EXPECT_FALSE(same_bits(run(opened_.model, ids), run(OpenedModel(directory_).model, ids)));
}

INSTANTIATE_TEST_SUITE_P(TinyV32, Bf16,
                         ::testing::Values(Case{"fp8", "/examples/tiny-v32",
                                                "/tests/golden/tiny-v32/forward_fp8.safetensors"},
                                           Case{"bf16", "/tests/golden/tiny-v32/bf16",
                                                "/tests/golden/tiny-v32/forward_bf16.safetensors"}),
                         [](const auto& suite) { return std::string(suite.param.name); });

inference::ModelOptions native(AttentionForm form = AttentionForm::kAuto, std::size_t threads = 1) {
  return {.profile = Profile::kNative, .form = form, .threads = threads};
}

class Native : public ::testing::Test {
 protected:
  Native() : golden_(INGOT_SOURCE_DIR "/tests/golden/tiny-v32/forward_fp8.safetensors") {}

  /// Converts the example for a dialect.
  std::filesystem::path convert_to(SchemeId scheme, const char* dialect, Activations activations,
                                   std::optional<float> input_scale = std::nullopt) {
    Conversion conversion(tiny_v32(), directory_ / "converted");
    conversion.recipe.to = scheme;
    conversion.recipe.choices.dialect = dialect;
    conversion.recipe.choices.activations = activations;
    conversion.recipe.choices.input_scale = input_scale;
    conversion.run();
    return directory_ / "converted";
  }

  /// Every layer alone, from recorded states: close to the recorded ones and to FP32 with the same
  /// weights, and yet not the latter.
  void expect_layers_close(const std::filesystem::path& directory, double least) const {
    const OpenedModel quantized(directory, native()), exact(directory);
    for (const std::size_t p : {3U, 4U}) {
      for (std::size_t l = 0; l < quantized.model.spec().layers; ++l) {
        const auto hidden = [&](std::size_t i) {
          return golden_.matrix(fmt::format("prompt{}.hidden.{}", p, i));
        };
        const Matrix is = isolated_layer(quantized.model, l, hidden(l));
        const Matrix plain = isolated_layer(exact.model, l, hidden(l));
        const std::string where = fmt::format("prompt {} layer {}", p, l);
        EXPECT_GE(mean(row_cosines(is, hidden(l + 1))), least) << where;
        EXPECT_GE(mean(row_cosines(is, plain)), least) << where;
        EXPECT_GE(relative_error(is.values(), plain.values()), kQuantized) << where;
      }
    }
  }

  /// More than rounding to BF16 explains.
  static constexpr double kQuantized = 6e-3;

  GoldenFile golden_;
  TempDir directory_;
};

TEST_F(Native, Fp8LayersAreCloseToTheRecordedOnes) {
  expect_layers_close(tiny_v32(), 0.999);
}

TEST_F(Native, Int8LayersAreCloseToTheRecordedOnes) {
  expect_layers_close(
      convert_to(SchemeId::kInt8Channel, "compressed-tensors", Activations::kDynamic), 0.999);
}

// An input scale of 1/16 covers inputs up to 448 * 6 / 16 = 168; half of that would clip some.
TEST_F(Native, Nvfp4LayersAreCloseToTheRecord) {
  expect_layers_close(convert_to(SchemeId::kNvfp4, "modelopt", Activations::kStatic, 1.0F / 16),
                      0.994);
}

// Weight-only means that nothing but the weights is quantized: BF16 between the operations.
TEST_F(Native, WeightOnlyLayersLeaveTheActivationsInBf16) {
  const auto directory = convert_to(SchemeId::kNvfp4, "modelopt", Activations::kWeightOnly);
  const OpenedModel quantized(directory, native()), exact(directory);
  for (std::size_t l = 0; l < exact.model.spec().layers; ++l) {
    const Matrix hidden = golden_.matrix(fmt::format("prompt3.hidden.{}", l));
    const auto cosines = row_cosines(isolated_layer(quantized.model, l, hidden),
                                     isolated_layer(exact.model, l, hidden));
    EXPECT_GE(median(cosines), 0.9999) << "layer " << l;
  }
}

// Rows are quantized each on its own, so what else is in the step changes nothing.
TEST_F(Native, ResultsDoNotDependOnChunksOrThreads) {
  auto ids = golden_.integers("prompt4.input_ids");
  ids.resize(70);
  for (const AttentionForm form : {AttentionForm::kNaive, AttentionForm::kAbsorbed}) {
    const OpenedModel opened(tiny_v32(), native(form)), two(tiny_v32(), native(form, 2));
    const Recording whole = run(opened.model, ids);
    EXPECT_GT(whole.n_selected, 0U);
    EXPECT_TRUE(same_bits(run(opened.model, ids, 33), whole));
    EXPECT_TRUE(same_bits(run(two.model, ids), whole));
  }
}

}  // namespace

}  // namespace ingot::testing
