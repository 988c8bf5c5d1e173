#include "tests/inference/model/golden_file.h"
#include "tests/inference/model/runner.h"
#include "tests/support/test.h"

// A sequence's result does not depend on other sequences of the step or on old contents of the
// cache.

namespace ingot::testing {
namespace {

using namespace inference;
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

// A prompt of 50 tokens and an answer of 22: step by step, in chunks, and computed again at once.
TEST_P(Batch, AnswersIgnoreHowTheirRowsAreGrouped) {
  constexpr std::size_t kPrompt = 50;
  const OpenedModel opened(directory());
  const Tokens& tokens = prompts_[0];
  // The first tokens in chunks of one size, the others in chunks of another.
  const auto recorded = [&](std::size_t first, std::size_t chunk, std::size_t then) {
    Recording recording;
    ModelCache cache = opened.model.make_cache(KvFormat::kF32, 128);
    const SequenceId sequence = cache.add();
    feed(opened.model, cache, sequence, std::span(tokens).first(first), chunk, recording, kPrompt);
    feed(opened.model, cache, sequence, tokens, then, recording, kPrompt);
    return recording;
  };
  const Recording wanted = recorded(kPrompt, kPrompt, 1);
  EXPECT_EQ(wanted.logits.size(), tokens.size() * opened.model.spec().vocab);
  EXPECT_TRUE(same_bits(recorded(kPrompt, 7, 3), wanted));
  EXPECT_TRUE(same_bits(recorded(kPrompt, 1, 22), wanted));
  EXPECT_TRUE(same_bits(recorded(30, 30, tokens.size()), wanted));
  EXPECT_TRUE(same_bits(recorded(0, 1, tokens.size()), wanted));
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

// As after a rejected draft: rows at positions that are taken replace the old ones.
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

// However a prompt is fed, every position has the same result: bit for bit within one form of
// attention, and within rounding between the forms.

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
    for (std::size_t l = 0; l <= spec.n_main; ++l) {
      const auto [states, wanted] = golden_.states_and_recorded(is.hidden.at(l), prompt_, l);
      EXPECT_LE(relative_error(states, wanted), 1e-5) << "hidden " << l;
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
    feed(model, cache, sequence, ids_, 1, recording, prefix);
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

INSTANTIATE_TEST_SUITE_P(TinyV32, ChunkedPrompt, ::testing::Values(4),
                         ::testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(SlowTinyV32, ChunkedPrompt, ::testing::Values(5),
                         ::testing::PrintToStringParamName());

TEST(MtpLayer, MayBeLeftOut) {
  const auto ids = GoldenFile(INGOT_SOURCE_DIR "/tests/golden/tiny-v32/forward_fp8.safetensors")
                       .integers("prompt3.input_ids");
  const OpenedModel with(INGOT_SOURCE_DIR "/examples/tiny-v32");
  inference::ModelOptions options = f32_options();
  options.without_mtp = true;
  const OpenedModel without(INGOT_SOURCE_DIR "/examples/tiny-v32", options);
  EXPECT_FALSE(without.model.has_mtp());
  EXPECT_LT(without.model.bytes_read(), with.model.bytes_read());
  EXPECT_LT(cache_bytes_per_token(without.model), cache_bytes_per_token(with.model));
  EXPECT_TRUE(same_bits(run(without.model, ids), run(with.model, ids)));
}

}  // namespace
}  // namespace ingot::testing
