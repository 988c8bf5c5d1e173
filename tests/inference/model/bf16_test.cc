// Profile bf16 against FP32 activations that Hugging Face transformers recorded.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/inference/model/golden_file.h"
#include "tests/inference/model/runner.h"

namespace ingot::testing {
namespace {

using inference::Matrix;
using inference::Profile;

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

}  // namespace
}  // namespace ingot::testing
