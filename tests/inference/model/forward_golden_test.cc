#include "tests/convert/conversion.h"
#include "tests/inference/model/golden_file.h"
#include "tests/inference/model/runner.h"
#include "tests/support/test.h"

// The forward pass in FP32 against activations that Hugging Face transformers recorded.

namespace ingot::testing {
namespace {

using namespace inference;
using formats::Activations;
using formats::SchemeId;
using inference::Matrix;

constexpr std::size_t kPrompts = 6;

struct Case {
  const char* name;
  std::string checkpoint, golden;
};

const std::vector<Case> kCases = {
    {"fp8", "/examples/tiny-v32", "/tests/golden/tiny-v32/forward_fp8.safetensors"},
    {"bf16", "/tests/golden/tiny-v32/bf16", "/tests/golden/tiny-v32/forward_bf16.safetensors"}};

std::string case_name(const ::testing::TestParamInfo<Case>& row) {
  return row.param.name;
}

class ForwardGolden : public ::testing::TestWithParam<Case> {
 protected:
  explicit ForwardGolden(const ModelOptions& options = f32_options())
      : directory_(std::string(INGOT_SOURCE_DIR) + GetParam().checkpoint),
        opened_(directory_, options),
        golden_(std::string(INGOT_SOURCE_DIR) + GetParam().golden) {}

  [[nodiscard]] const inference::Model& model() const { return opened_.model; }

  /// The pass over a prompt in FP32, made once per process.
  [[nodiscard]] const Recording& recorded(std::size_t p) const {
    static std::map<std::pair<std::string, std::size_t>, Recording> known;
    const auto [at, is_new] = known.try_emplace({GetParam().checkpoint, p});
    if (is_new) at->second = run(model(), golden_.integers(fmt::format("prompt{}.input_ids", p)));
    return at->second;
  }

  std::filesystem::path directory_;
  OpenedModel opened_;
  GoldenFile golden_;
};

TEST_P(ForwardGolden, EveryLayerAndTheLogitsAgreeWithinRounding) {
  for (std::size_t p = 0; p < kPrompts; ++p) {
    const std::string prompt = fmt::format("prompt{}.", p);
    SCOPED_TRACE(prompt);
    const auto ids = golden_.integers(prompt + "input_ids");
    const Recording& is = recorded(p);
    for (std::size_t l = 0; l <= model().spec().n_main; ++l) {
      const auto [states, wanted] = golden_.states_and_recorded(is.hidden.at(l), prompt, l);
      EXPECT_LE(relative_error(states, wanted), 1e-5) << "hidden " << l;
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
    EXPECT_EQ(is.n_selected > 0, ids.size() > model().spec().indexer()->topk);
  }
}

TEST_P(ForwardGolden, ChoosesTheSameExpertsAndWeights) {
  for (std::size_t p = 0; p < kPrompts; ++p) {
    const std::string prompt = fmt::format("prompt{}.", p);
    const Recording& is = recorded(p);
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

// FamilyGolden has others in BF16.
INSTANTIATE_TEST_SUITE_P(TinyV32, ForwardGolden, ::testing::Values(kCases[0]), case_name);
INSTANTIATE_TEST_SUITE_P(SlowTinyV32, ForwardGolden, ::testing::Values(kCases[1]), case_name);

class FamilyGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(FamilyGolden, EveryLayerAllLogitsAndGreedyTokensAgree) {
  const std::string directory = std::string(INGOT_SOURCE_DIR) + "/tests/golden/" + GetParam();
  const OpenedModel opened(directory + "/checkpoint");
  const GoldenFile golden(directory + "/golden.safetensors");
  const auto ids = golden.integers("input_ids");
  const Recording is = run(opened.model, ids);
  for (std::size_t l = 0; l <= opened.model.spec().n_main; ++l) {
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

// Profile bf16 against the same activations.
class Bf16 : public ForwardGolden {
 protected:
  Bf16() : ForwardGolden({.profile = Profile::kBf16, .threads = 2}) {}
};

TEST_P(Bf16, LayersAloneAreCloseToTheRecordedOnes) {
  for (const std::size_t p : {3U, 4U}) {
    for (std::size_t l = 0; l < opened_.model.spec().n_main; ++l) {
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

INSTANTIATE_TEST_SUITE_P(TinyV32, Bf16, ::testing::ValuesIn(kCases), case_name);

// Profile native: quantized activations, as the target hardware would have them, against FP32.
ModelOptions native(AttentionForm form = AttentionForm::kAuto, std::size_t threads = 1) {
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

  /// Every layer by itself, from recorded states: close to the recorded ones and to FP32 with the
  /// same weights, and yet not the latter.
  void expect_layers_close(const std::filesystem::path& directory, double least) const {
    const OpenedModel quantized(directory, native()), exact(directory);
    for (const std::size_t p : {3U, 4U}) {
      for (std::size_t l = 0; l < quantized.model.spec().n_main; ++l) {
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

// Weight-only means that only the weights are quantized: BF16 between the operations.
TEST_F(Native, WeightOnlyLayersLeaveTheActivationsInBf16) {
  const auto directory = convert_to(SchemeId::kNvfp4, "modelopt", Activations::kWeightOnly);
  const OpenedModel quantized(directory, native()), exact(directory);
  for (std::size_t l = 0; l < exact.model.spec().n_main; ++l) {
    const Matrix hidden = golden_.matrix(fmt::format("prompt3.hidden.{}", l));
    const auto cosines = row_cosines(isolated_layer(quantized.model, l, hidden),
                                     isolated_layer(exact.model, l, hidden));
    EXPECT_GE(median(cosines), 0.9999) << "layer " << l;
  }
}

// Rows are quantized each on its own, so other rows of the step change nothing.
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
