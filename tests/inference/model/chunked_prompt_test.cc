// However a prompt is fed, every position has the same result: bit for bit within one form of
// attention, and within rounding between the forms.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/inference/model/golden_file.h"
#include "tests/inference/model/runner.h"

namespace ingot::testing {
namespace {

using inference::AttentionForm;

/// The two prompts that are longer than index_topk.
class ChunkedPrompt : public ::testing::TestWithParam<std::size_t> {
 protected:
  ChunkedPrompt()
      : golden_(INGOT_SOURCE_DIR "/tests/golden/tiny-v32/forward_fp8.safetensors"),
        prompt_(fmt::format("prompt{}.", GetParam())),
        ids_(golden_.integers(prompt_ + "input_ids")) {}

  static OpenedModel open(AttentionForm form, std::size_t threads = 1) {
    return OpenedModel(INGOT_SOURCE_DIR "/examples/tiny-v32", f32_options(form, threads));
  }

  void expect_golden(const Recording& is, const inference::ModelSpec& spec) const {
    for (std::size_t l = 0; l <= spec.layers; ++l) {
      EXPECT_LE(
          relative_error(is.hidden.at(l), golden_.floats(fmt::format("{}hidden.{}", prompt_, l))),
          1e-5)
          << "hidden " << l;
    }
    const auto nll = golden_.floats(prompt_ + "nll");
    ASSERT_EQ(is.logits.size(), ids_.size() * spec.vocab);
    for (std::size_t i = 0; i < nll.size(); ++i) {
      const auto logits = std::span(is.logits).subspan(i * spec.vocab, spec.vocab);
      EXPECT_NEAR(negative_log_likelihood(logits, ids_[i + 1]), double{nll[i]}, 1e-4) << i;
    }
  }

  /// A prefix at once, the last tokens one by one.
  [[nodiscard]] Recording prefix_and_decode(const inference::Model& model) const {
    constexpr std::size_t kDecoded = 20;
    Recording recording;
    inference::ModelCache cache = model.make_cache(inference::KvFormat::kF32, ids_.size());
    const inference::SequenceId sequence = cache.add();
    const std::size_t prefix = ids_.size() - kDecoded;
    feed(model, cache, sequence, std::span(ids_).first(prefix), prefix, recording);
    feed(model, cache, sequence, ids_, 1, recording);
    return recording;
  }

  void expect_same_in_chunks(const inference::Model& model, const Recording& whole,
                             std::initializer_list<std::size_t> chunks) const {
    for (const std::size_t chunk : chunks) {
      EXPECT_TRUE(same_bits(run(model, ids_, chunk), whole)) << "chunks of " << chunk;
    }
  }

  GoldenFile golden_;
  std::string prompt_;
  std::vector<std::int64_t> ids_;
};

TEST_P(ChunkedPrompt, FormsAgreeAndEachIsStable) {
  const OpenedModel naive = open(AttentionForm::kNaive), absorbed = open(AttentionForm::kAbsorbed);
  const Recording a = run(naive.model, ids_), b = run(absorbed.model, ids_);
  EXPECT_GT(a.n_selected, 0U);
  expect_golden(a, naive.model.spec());
  expect_golden(b, absorbed.model.spec());
  for (const auto& [index, values] : a.hidden) {
    EXPECT_LE(relative_error(b.hidden.at(index), values), 1e-5) << "hidden " << index;
  }
  EXPECT_LE(relative_error(b.logits, a.logits), 1e-5);
  EXPECT_FALSE(same_bits(a, b)) << "two forms were computed";
  expect_same_in_chunks(naive.model, a, {64});
  EXPECT_TRUE(same_bits(prefix_and_decode(naive.model), a)) << "prefix and decode";
  expect_same_in_chunks(absorbed.model, b, {1, 7, 64});
  EXPECT_TRUE(same_bits(prefix_and_decode(absorbed.model), b)) << "prefix and decode";
}

// Every chunk expands the keys of all tokens before it.
TEST_P(ChunkedPrompt, NaiveFormIgnoresChunksSlow) {
  const OpenedModel opened = open(AttentionForm::kNaive);
  expect_same_in_chunks(opened.model, run(opened.model, ids_), {1, 7});
}

TEST_P(ChunkedPrompt, MayChangeTheFormAtEveryStep) {
  const OpenedModel opened = open(AttentionForm::kAuto);
  expect_golden(prefix_and_decode(opened.model), opened.model.spec());
}

TEST_P(ChunkedPrompt, IgnoresThreads) {
  for (const AttentionForm form : {AttentionForm::kNaive, AttentionForm::kAbsorbed}) {
    const OpenedModel one = open(form, 1), two = open(form, 2);
    EXPECT_TRUE(same_bits(run(one.model, ids_), run(two.model, ids_)));
  }
}

INSTANTIATE_TEST_SUITE_P(TinyV32, ChunkedPrompt, ::testing::Values(4, 5),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace ingot::testing
