#include "verify/outputs/greedy_check.h"

#include <charconv>

#include "formats/json/json.h"
#include "inference/generate/generate.h"
#include "inference/generate/memory_plan.h"
#include "tests/inference/model/golden_file.h"
#include "tests/inference/model/runner.h"
#include "tests/support/edited_weights.h"
#include "tests/support/test.h"
#include "tests/verify/layers/example.h"
#include "tests/verify/layers/exchanged.h"
#include "verify/layers/layer_check.h"
#include "verify/outputs/divergence.h"
#include "verify/outputs/draft_check.h"
#include "verify/outputs/interval.h"
#include "verify/outputs/likelihood.h"

namespace ingot::testing {
namespace {

using namespace verify;
using verify::LogitAgreement;
using verify::TokenDivergence;

RunOptions exact(std::size_t tokens) {
  return {.tokens = tokens, .output_profile = inference::Profile::kF32};
}

// A story and two questions, one of them with a short answer.
std::vector<Prompt> three_prompts(const Example& example) {
  return {example.prompts.at(1), example.prompts.at(3), example.prompts.at(4)};
}

formats::Checkpoint master() {
  return shard::open_source(INGOT_SOURCE_DIR "/tests/golden/tiny-v32/bf16");
}

TEST(GreedyCheck, ModelAgreesWithItselfAndGenerate) {
  const Example example;
  const auto prompts = three_prompts(example);
  const GreedyReport report =
      verify::compare_greedy(example.model, example.model, prompts, &example.tokenizer, exact(12));
  EXPECT_EQ(report.equal, 3U);
  EXPECT_EQ(report.prompts[1].source_text, "The capital of Norway is Oslo.");
  EXPECT_EQ(report.prompts[2].output_text, "中国的首都是北京。");
  EXPECT_EQ(report.prompts[2].source.back(), 1);  // the end

  const OpenedModel opened(tiny_v32());
  std::vector<std::vector<std::int32_t>> ids;
  for (const Prompt& prompt : prompts) ids.push_back(prompt.ids);
  inference::GenerateOptions options;
  options.sampling.temperature = 0;
  options.max_new_tokens = 12;
  options.eos = {1};
  options.kv_format = inference::KvFormat::kF32;
  const auto wanted = inference::generate(opened.model, ids, options);
  for (std::size_t p = 0; p < 3; ++p) {
    EXPECT_EQ(report.prompts[p].source, wanted.answers[p].tokens);
    EXPECT_EQ(report.prompts[p].output, wanted.answers[p].tokens);
    EXPECT_EQ(report.prompts[p].outcome, GreedyOutcome::kEqual);
    EXPECT_EQ(report.prompts[p].first_difference, std::nullopt);
  }
}

// A router of zeros chooses among equals; the bias of a trained one does not.
TEST(GreedyCheck, CountsChoicesNearATie) {
  const Example example;
  const EditedCopy copy(tiny_v32());
  for (const char* tensor : {"weight", "e_score_correction_bias"})
    copy.fill_zero(fmt::format("model.layers.2.mlp.gate.{}", tensor));
  const std::vector<Prompt> story = {example.prompts.at(0)};
  const GreedyReport report = verify::compare_greedy(example.model, shard::open_source(copy.path()),
                                                     story, &example.tokenizer, exact(4));
  const std::size_t n_tokens = story[0].ids.size() + report.prompts[0].output.size() - 1;
  EXPECT_EQ(report.source_near_ties.router, 0U);
  EXPECT_EQ(report.output_near_ties.router, n_tokens);
}

TEST(GreedyCheck, FailsOnTheWeightsOfAnotherModel) {
  const Example example;
  const TempDir directory;
  copy_exchanged(tiny_v32(), directory / "out", "model.layers.2.", "model.layers.4.");
  const auto output = shard::open_source(directory / "out");
  const auto prompts = three_prompts(example);
  const GreedyReport report =
      verify::compare_greedy(example.model, output, prompts, &example.tokenizer, exact(6));
  EXPECT_GE(report.different, 1U);
  EXPECT_EQ(report.equal + report.inconclusive + report.different, 3U);
  for (const GreedyPrompt& prompt : report.prompts) {
    if (!prompt.first_difference) continue;
    const std::size_t n = *prompt.first_difference;
    EXPECT_NE(prompt.source[n], prompt.output[n]);
    EXPECT_TRUE(std::equal(prompt.source.begin(),
                           prompt.source.begin() + static_cast<std::ptrdiff_t>(n),
                           prompt.output.begin()));
    EXPECT_LE(prompt.limit, 1.0);
    EXPECT_EQ(prompt.outcome == GreedyOutcome::kDifferent, prompt.gap > prompt.limit);
  }
}

// The rule, with its figures from the models themselves.
TEST(GreedyCheck, JudgesAGapByTheDifferencesBeforeIt) {
  const Example example;
  const auto output = master();
  // Lily's decision at the end is a matter of rounding.
  const std::vector<Prompt> story = {example.prompts.at(0)};
  RunOptions options = exact(8);
  options.gap = 1e9;
  const GreedyReport report =
      verify::compare_greedy(example.model, output, story, &example.tokenizer, options);
  const GreedyPrompt& parted = report.prompts.at(0);
  ASSERT_TRUE(parted.first_difference.has_value());
  const std::size_t n = *parted.first_difference;
  ASSERT_GT(n, 0U);

  // Logits of both after the prompt and each agreed token, from models of their own.
  const OpenedModel source(tiny_v32());
  const OpenedModel other(INGOT_SOURCE_DIR "/tests/golden/tiny-v32/bf16");
  std::vector<std::int64_t> tokens(story[0].ids.begin(), story[0].ids.end());
  tokens.insert(tokens.end(), parted.source.begin(),
                parted.source.begin() + static_cast<std::ptrdiff_t>(n));
  const Recording a = run(source.model, tokens), b = run(other.model, tokens);
  const std::size_t vocab = 2048, first = story[0].ids.size() - 1;
  double largest = 0;
  for (std::size_t i = first * vocab; i < (first + n) * vocab; ++i) {
    largest = std::max(largest, std::abs(double{a.logits[i]} - double{b.logits[i]}));
  }
  const auto last = std::span(a.logits).last(vocab);
  EXPECT_NEAR(parted.limit, 2 * largest, 1e-3);
  EXPECT_NEAR(parted.gap, top_gap(last), 1e-3);

  options.gap = parted.gap / 2;
  const GreedyReport strict =
      verify::compare_greedy(example.model, output, story, nullptr, options);
  EXPECT_EQ(strict.prompts[0].limit, options.gap);
  EXPECT_EQ(strict.prompts[0].outcome, GreedyOutcome::kDifferent);
  EXPECT_TRUE(strict.prompts[0].source_text.empty());
}

TEST(GreedyCheck, GivesTheSameAnswersWithLittleMemory) {
  const Example example;
  const auto prompts = three_prompts(example);
  RunOptions options = exact(3);
  const GreedyReport roomy =
      verify::compare_greedy(example.model, example.model, prompts, nullptr, options);
  std::vector<std::size_t> lengths;
  for (const Prompt& prompt : prompts) lengths.push_back(prompt.ids.size() + 3);
  const auto need = inference::run_memory(example.model, inference::Profile::kF32,
                                          inference::KvFormat::kF32, lengths, 2);
  options.threads = 2;
  options.mem_limit = 2 * need.least() + (need.all() - need.least()) / 2;
  const GreedyReport tight =
      verify::compare_greedy(example.model, example.model, prompts, nullptr, options);
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    EXPECT_EQ(tight.prompts[p].source, roomy.prompts[p].source);
    EXPECT_EQ(tight.prompts[p].output, roomy.prompts[p].output);
  }
  options.mem_limit = 2 * need.least() - 1;
  expect_error(ErrorCode::kLimit, {"--mem-limit", "would be enough"}, [&] {
    verify::compare_greedy(example.model, example.model, prompts, nullptr, options);
  });
}

TEST(GreedyCheck, RefusesAnotherVocabularyAndPromptsOutOfRange) {
  const Example example;
  const auto other =
      shard::open_source(INGOT_SOURCE_DIR "/tests/golden/arch/deepseek_v3/checkpoint");
  expect_error(ErrorCode::kMismatch, {"2048", "512"}, [&] {
    verify::compare_greedy(example.model, other, example.prompts, nullptr, exact(1));
  });
  expect_error(ErrorCode::kInvalidArgument, {"no prompt"}, [&] {
    verify::compare_greedy(example.model, example.model, {}, nullptr, exact(1));
  });
  const std::vector<Prompt> bad = {{.ids = {0, 2048}}};
  expect_error(ErrorCode::kInvalidArgument, {"prompt 0"}, [&] {
    verify::compare_greedy(example.model, example.model, bad, nullptr, exact(1));
  });
}

constexpr const char* kTiny = INGOT_SOURCE_DIR "/tests/golden/tiny-v32/";

// As they were recorded: the first 512 tokens of each.
std::vector<Prompt> recorded_documents(const Example& example) {
  auto documents = verify::read_documents(std::string(kTiny) + "val_docs.json", example.model,
                                          example.tokenizer);
  for (Prompt& document : documents) {
    document.ids.resize(std::min<std::size_t>(document.ids.size(), 512));
  }
  return documents;
}

RunOptions exact_on(std::size_t threads) {
  return {.output_profile = inference::Profile::kF32, .threads = threads};
}

// The recorded losses of the prompts, of which one is longer than the indexer's choice.
TEST(LikelihoodCheck, FindsTheRecordedLossOfThePrompts) {
  const Example example;
  const GoldenFile golden(std::string(kTiny) + "forward_fp8.safetensors");
  std::vector<Prompt> prompts;
  double wanted = 0;
  std::size_t tokens = 0;
  for (int p = 0; golden.has(fmt::format("prompt{}.nll", p)); ++p) {
    const auto ids = golden.integers(fmt::format("prompt{}.input_ids", p));
    prompts.push_back({.text = {}, .ids = {ids.begin(), ids.end()}});
    for (const float loss : golden.floats(fmt::format("prompt{}.nll", p))) wanted += double{loss};
    tokens += ids.size() - 1;
  }
  ASSERT_EQ(prompts.size(), 6U);
  const Likelihood is = verify::measure_likelihood(example.model, prompts, exact_on(2));
  EXPECT_EQ(is.documents, 6U);
  EXPECT_EQ(is.tokens, tokens);
  EXPECT_NEAR(is.nll, wanted, wanted * 1e-4);
  EXPECT_NEAR(is.perplexity(), std::exp(wanted / static_cast<double>(tokens)), 1e-4);
}

TEST(SlowLikelihoodCheck, FindsThePerplexityThatWasRecorded) {
  const Example example;
  const formats::Json golden =
      formats::read_json_file(std::string(kTiny) + "forward_fp8.json", 1U << 20U);
  const formats::Json& wanted = golden["perplexity_100_docs"];
  const Likelihood is =
      verify::measure_likelihood(example.model, recorded_documents(example), exact_on(2));
  EXPECT_EQ(is.documents, 100U);
  EXPECT_EQ(is.tokens, wanted["tokens"].get<std::uint64_t>());
  const double perplexity = wanted["ppl"].get<double>();
  EXPECT_NEAR(is.perplexity(), perplexity, perplexity * 1e-4);
  EXPECT_NEAR(is.nll, wanted["nll_sum"].get<double>(), wanted["nll_sum"].get<double>() * 1e-4);
}

TEST(LikelihoodCheck, IgnoresBatchesAndThreads) {
  const Example example;
  auto documents = recorded_documents(example);
  documents.resize(3);
  RunOptions roomy = exact_on(1), tight = exact_on(2);
  std::uint64_t roomy_layers = 0, tight_layers = 0;
  roomy.progress = [&](std::uint64_t, std::uint64_t all) { roomy_layers = all; };
  tight.progress = [&](std::uint64_t, std::uint64_t all) { tight_layers = all; };
  const Likelihood wanted = verify::measure_likelihood(example.model, documents, roomy);

  tight.mem_limit = 1'000'000;
  try {
    verify::measure_likelihood(example.model, documents, tight);
    FAIL() << "1 MB is not enough";
  } catch (const Error& error) {
    tight.mem_limit = enough_memory(error);
  }
  const Likelihood is = verify::measure_likelihood(example.model, documents, tight);
  EXPECT_EQ(is.nll, wanted.nll);
  EXPECT_EQ(is.tokens, wanted.tokens);
  EXPECT_EQ(roomy_layers, 5U);
  EXPECT_GT(tight_layers, roomy_layers);
}

// A second way to the same logits: both models in lockstep.
TEST(TextCheck, HasTheDivergenceOfLevelLayers) {
  const Example example;
  const formats::Checkpoint output = master();
  auto documents = three_prompts(example);
  for (std::size_t d = 0; d < documents.size(); ++d) documents[d].document = d;
  const RunOptions options = exact_on(2);
  const TextReport text = verify::compare_text(example.model, output, documents, options);
  const LayersReport layers = verify::compare_layers(example.model, output, documents, options);
  std::vector<double> kl(3), source_nll(3), output_nll(3);
  for (const TokenDivergence& token : layers.tokens_of_logits) {
    if (!token.source_nll) continue;
    kl[token.prompt] += token.kl;
    source_nll[token.prompt] += *token.source_nll;
    output_nll[token.prompt] += *token.output_nll;
  }
  ASSERT_EQ(text.output.sequences.size(), 3U);
  double all = 0;
  for (std::size_t d = 0; d < 3; ++d) {
    EXPECT_EQ(text.output.sequences[d].kl, kl[d]);
    EXPECT_EQ(text.output.sequences[d].nll, output_nll[d]);
    EXPECT_EQ(text.source->sequences[d].nll, source_nll[d]);
    EXPECT_EQ(text.output.sequences[d].document, d);
    all += kl[d];
  }
  const verify::TextFigure figure = verify::kl_of(text);
  EXPECT_DOUBLE_EQ(figure.mean, all / static_cast<double>(text.output.tokens));
  ASSERT_TRUE(figure.interval);
  EXPECT_LT(figure.interval->low, figure.mean);
  EXPECT_GT(figure.interval->high, figure.mean);
}

TEST(TextCheck, BatchesAndThreadsChangeNothing) {
  const Example example;
  const formats::Checkpoint output = master();
  auto documents = recorded_documents(example);
  documents.resize(3);
  const TextReport wanted = verify::compare_text(example.model, output, documents, exact_on(1));
  RunOptions tight = exact_on(2);
  std::uint64_t n_layers = 0;
  tight.progress = [&](std::uint64_t, std::uint64_t all) { n_layers = all; };
  tight.mem_limit = 1'000'000;
  try {
    verify::compare_text(example.model, output, documents, tight);
    FAIL() << "1 MB is not enough";
  } catch (const Error& error) {
    tight.mem_limit = enough_memory(error);
  }
  const TextReport is = verify::compare_text(example.model, output, documents, tight);
  EXPECT_GT(n_layers, 2 * 5U) << "several batches";
  EXPECT_EQ(is.output.nll, wanted.output.nll);
  EXPECT_EQ(is.source->nll, wanted.source->nll);
  EXPECT_EQ(verify::kl_of(is).mean, verify::kl_of(wanted).mean);
}

TEST(TextCheck, WindowsOfOneDocumentGiveNoInterval) {
  const Example example;
  auto windows = three_prompts(example);  // each is of document 0
  const Likelihood is = verify::measure_likelihood(example.model, windows, exact_on(1));
  EXPECT_FALSE(verify::nll_of(is).interval);
  windows.back().document = 1;
  const Likelihood two = verify::measure_likelihood(example.model, windows, exact_on(1));
  EXPECT_TRUE(verify::nll_of(two).interval);
  EXPECT_EQ(verify::nll_of(two).mean, verify::nll_of(is).mean);
}

TEST(LikelihoodCheck, PredictsNothingOfOneToken) {
  const Example example;
  const std::vector<Prompt> one = {{.ids = {0}}};
  const Likelihood is = verify::measure_likelihood(example.model, one, exact_on(1));
  EXPECT_EQ(is.tokens, 0U);
  EXPECT_TRUE(std::isnan(is.perplexity()));
}

float ln(double value) {
  return static_cast<float>(std::log(value));
}

TEST(Divergence, IgnoresAShiftOfLogits) {
  const std::vector<float> p = {ln(0.5), ln(0.25), ln(0.25)};
  const std::vector<float> q = {ln(0.25) + 10, ln(0.5) + 10, ln(0.25) + 10};
  const TokenDivergence token = verify::compare_logits(p, q, 1);
  EXPECT_NEAR(token.kl, 0.5 * std::log(2.0) - 0.25 * std::log(2.0), 1e-6);
  EXPECT_FALSE(token.same_top);
  EXPECT_NEAR(token.source_nll.value(), std::log(4.0), 1e-6);
  EXPECT_NEAR(token.output_nll.value(), std::log(2.0), 1e-6);
  EXPECT_NEAR(token.max_error, 10 + std::log(2.0), 1e-5);
  EXPECT_NEAR(verify::negative_log_likelihood(q, 2), std::log(4.0), 1e-6);
}

TEST(Divergence, SurvivesLogitsThatExpWouldNot) {
  const std::vector<float> p = {1000, 0}, q = {0, 1000};
  EXPECT_NEAR(verify::compare_logits(p, q, std::nullopt).kl, 1000, 1e-9);
  EXPECT_EQ(verify::compare_logits(p, p, std::nullopt).kl, 0);
  EXPECT_FALSE(verify::compare_logits(p, p, std::nullopt).source_nll.has_value());
}

TEST(Divergence, CountsTheSharedOfTheFiveLargest) {
  const std::vector<float> p = {9, 8, 7, 6, 5, 4, 3, 2};
  const std::vector<float> q = {9, 1, 7, 1, 5, 4, 8, 2};  // 0, 6, 2, 4, 5
  EXPECT_DOUBLE_EQ(verify::compare_logits(p, q, std::nullopt).top5, 0.6);
  EXPECT_TRUE(verify::compare_logits(p, q, std::nullopt).same_top);
}

TEST(Divergence, TakesTheLowerIdOfEquals) {
  const std::vector<float> p = {0, 5, 5}, q = {0, 5, 4};
  EXPECT_TRUE(verify::compare_logits(p, q, std::nullopt).same_top);
  EXPECT_EQ(verify::top_gap(p), 0);
  EXPECT_EQ(verify::top_gap(q), 1);
}

TEST(Divergence, IsAveragedOverTokensAndKnowsTheWorst) {
  const std::vector<TokenDivergence> tokens = {
      {.prompt = 0, .token = 0, .kl = 1, .max_error = 3, .source_nll = 2, .output_nll = 3},
      {.prompt = 0, .token = 1, .kl = 5, .same_top = false, .top5 = 0.5},
      {.prompt = 1, .token = 0, .kl = 0, .source_nll = 4, .output_nll = 4}};
  const LogitAgreement is = verify::logit_agreement(tokens);
  EXPECT_EQ(is.tokens, 3U);
  EXPECT_DOUBLE_EQ(is.mean_kl, 2);
  EXPECT_DOUBLE_EQ(is.worst_kl, 5);
  EXPECT_EQ(is.worst_prompt, 0U);
  EXPECT_EQ(is.worst_token, 1U);
  EXPECT_DOUBLE_EQ(is.top1, 2.0 / 3);
  EXPECT_DOUBLE_EQ(is.top5, 2.5 / 3);
  EXPECT_DOUBLE_EQ(is.max_error, 3);
  EXPECT_DOUBLE_EQ(is.source_nll, 3);
  EXPECT_DOUBLE_EQ(is.output_nll, 3.5);
  EXPECT_EQ(verify::logit_agreement({}), LogitAgreement{});
}

constexpr const char* kGolden = INGOT_SOURCE_DIR "/tests/golden/tiny-v32/forward_fp8.safetensors";

RunOptions exact() {
  return {.output_profile = inference::Profile::kF32};
}

std::uint64_t held_of(const DraftOutcomes& outcomes) {
  std::uint64_t n = 0;
  for (const auto& text : outcomes) n += static_cast<std::uint64_t>(std::ranges::count(text, true));
  return n;
}

std::uint64_t tokens_of(const DraftOutcomes& outcomes) {
  std::uint64_t n = 0;
  for (const auto& text : outcomes) n += text.size();
  return n;
}

// An independent program measured 0.947 over the recorded greedy answers.
TEST(DraftCheck, AcceptanceOfRecordedAnswersIsTheMeasuredOne) {
  const Example example;
  const GoldenFile golden(kGolden);
  std::vector<DraftText> texts;
  for (int p = 0; p < 4; ++p) {
    const auto ids = golden.integers(fmt::format("prompt{}.input_ids", p));
    const auto answer = golden.integers(fmt::format("prompt{}.greedy", p));
    DraftText& text = texts.emplace_back();
    text.first = ids.size();
    text.text.ids.assign(ids.begin(), ids.end());
    text.text.ids.insert(text.text.ids.end(), answer.begin(), answer.end());
  }
  const DraftOutcomes outcomes = measure_drafts(example.model, texts, exact());
  ASSERT_EQ(outcomes.size(), 4U);
  EXPECT_EQ(outcomes[1].size(), texts[1].text.ids.size() - texts[1].first);
  EXPECT_NEAR(static_cast<double>(held_of(outcomes)) / static_cast<double>(tokens_of(outcomes)),
              0.947, 0.02);
}

// The findings of the models' own loop, token by token.
TEST(DraftCheck, AnswersGoOnUntilThereAreEnough) {
  const Example example;
  const std::vector<DraftText> texts = answered_text(example.model, example.prompts, exact());
  const DraftOutcomes outcomes = measure_drafts(example.model, texts, exact());
  EXPECT_GE(tokens_of(outcomes), kDraftTokens);
  const DraftReport same = compare_drafts(outcomes, outcomes);
  EXPECT_EQ(same.tokens, tokens_of(outcomes));
  EXPECT_GT(same.source_acceptance(), 0.9);
  EXPECT_EQ(same.loss(), 0);
  EXPECT_EQ(same.interval, (Interval{0, 0}));
}

TEST(DraftCheck, EveryTokenOfAGivenTextCounts) {
  const Example example;
  const std::vector<Prompt> documents = {{.ids = {0}}, {.ids = {0, 5, 9, 7}}, {.ids = {0, 3}}};
  const DraftOutcomes outcomes = measure_drafts(example.model, whole_text(documents), exact());
  ASSERT_EQ(outcomes.size(), 3U);
  EXPECT_EQ(outcomes[0].size(), 0U);
  EXPECT_EQ(outcomes[1].size(), 3U);
  EXPECT_EQ(outcomes[2].size(), 1U);
}

TEST(DraftCheck, LossIsPairedAndInPoints) {
  // 64 tokens: both hold 32, only the source 16, only the output none.
  std::vector<bool> source(64), output(64);
  for (std::size_t i = 0; i < 64; ++i) {
    source[i] = i % 4 != 0;
    output[i] = i % 2 != 0;
  }
  const DraftReport report = compare_drafts({source, {}}, {output, {}});
  EXPECT_EQ(report.tokens, 64U);
  EXPECT_DOUBLE_EQ(report.source_acceptance(), 0.75);
  EXPECT_DOUBLE_EQ(report.output_acceptance(), 0.5);
  EXPECT_DOUBLE_EQ(report.loss(), 25);
  ASSERT_TRUE(report.interval);
  EXPECT_DOUBLE_EQ(report.sure_loss(), 25) << "both runs lose as much";
  const DraftReport few = compare_drafts({{true, true}}, {{true, false}});
  EXPECT_FALSE(few.interval);
  EXPECT_DOUBLE_EQ(few.sure_loss(), 50);
  EXPECT_EQ(compare_drafts({}, {}).loss(), 0);
}

}  // namespace
}  // namespace ingot::testing

namespace ingot::verify {
namespace {

TEST(StudentT, IsThatOfPrintedTables) {
  EXPECT_NEAR(student_t(1), 12.706, 5e-4);
  EXPECT_NEAR(student_t(4), 2.776, 5e-4);
  EXPECT_NEAR(student_t(10), 2.228, 5e-4);
  EXPECT_NEAR(student_t(11), 2.201, 5e-4);
  EXPECT_NEAR(student_t(30), 2.042, 5e-4);
  EXPECT_NEAR(student_t(120), 1.980, 5e-4);
}

TEST(MeanInterval, OfSingleSamplesIsTheTextbooks) {
  // Mean 2.5, standard deviation 1.29099, t of 3 degrees of freedom 3.18245.
  const std::vector<ClusterSum> clusters = {{1, 1}, {2, 1}, {3, 1}, {4, 1}};
  const auto interval = mean_interval(clusters);
  ASSERT_TRUE(interval);
  EXPECT_NEAR(interval->low, 0.44574, 1e-5);
  EXPECT_NEAR(interval->high, 4.55426, 1e-5);
}

TEST(MeanInterval, ClustersCountNotTheirTokens) {
  // 2,000 tokens of two prompts that disagree are two samples.
  const std::vector<ClusterSum> clusters = {{1000, 1000}, {4000, 1000}};
  const auto interval = mean_interval(clusters);
  ASSERT_TRUE(interval);
  EXPECT_NEAR(interval->low, 2.5 - 12.706205 * 1.5, 1e-4);
  EXPECT_NEAR(interval->high, 2.5 + 12.706205 * 1.5, 1e-4);
}

TEST(MeanInterval, LongerClustersWeighMore) {
  const std::vector<ClusterSum> clusters = {{3, 1}, {9, 3}};
  const auto interval = mean_interval(clusters);
  ASSERT_TRUE(interval);
  EXPECT_DOUBLE_EQ(interval->low, 3);
  EXPECT_DOUBLE_EQ(interval->high, 3);
}

TEST(MeanInterval, NeedsTwoClustersAndNumbers) {
  EXPECT_FALSE(mean_interval({}));
  EXPECT_FALSE(mean_interval(std::vector<ClusterSum>{{5, 100}}));
  EXPECT_FALSE(mean_interval(std::vector<ClusterSum>{{5, 100}, {0, 0}}));
  EXPECT_FALSE(mean_interval(
      std::vector<ClusterSum>{{5, 100}, {std::numeric_limits<double>::quiet_NaN(), 3}}));
}

TEST(BootstrapInterval, IsThatOfASecondProgram) {
  // By a program in Python that draws with the same words, and sorts the means.
  const std::vector<ClusterSum> clusters = {{1, 1},   {2, 1},   {4, 2}, {9, 3},
                                            {1.5, 1}, {0.5, 2}, {7, 2}, {3, 1}};
  const auto interval = bootstrap_interval(clusters);
  ASSERT_TRUE(interval);
  EXPECT_NEAR(interval->low, 1.2, 1e-12);
  EXPECT_NEAR(interval->high, 2.888888888888889, 1e-12);
}

TEST(BootstrapInterval, LongerDocumentsWeighMore) {
  const auto interval = bootstrap_interval(std::vector<ClusterSum>{{3, 1}, {9, 3}});
  ASSERT_TRUE(interval);
  EXPECT_DOUBLE_EQ(interval->low, 3);
  EXPECT_DOUBLE_EQ(interval->high, 3);
}

TEST(BootstrapInterval, PairsFiguresOfTheSameDocuments) {
  // One figure is the other plus 1 in every token: so are both ends.
  std::vector<ClusterSum> clusters = {{1, 1}, {2, 4}, {30, 9}, {4, 2}, {5, 5}};
  const auto before = bootstrap_interval(clusters);
  for (ClusterSum& cluster : clusters) cluster.sum += static_cast<double>(cluster.count);
  const auto after = bootstrap_interval(clusters);
  ASSERT_TRUE(before && after);
  EXPECT_NEAR(after->low, before->low + 1, 1e-12);
  EXPECT_NEAR(after->high, before->high + 1, 1e-12);
}

TEST(BootstrapInterval, NeedsTwoDocumentsAndNumbers) {
  EXPECT_FALSE(bootstrap_interval({}));
  EXPECT_FALSE(bootstrap_interval(std::vector<ClusterSum>{{5, 100}}));
  EXPECT_FALSE(bootstrap_interval(std::vector<ClusterSum>{{5, 100}, {0, 0}}));
  EXPECT_FALSE(bootstrap_interval(
      std::vector<ClusterSum>{{5, 100}, {std::numeric_limits<double>::quiet_NaN(), 3}}));
}

}  // namespace
}  // namespace ingot::verify
