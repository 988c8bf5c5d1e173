#include "inference/generate/generate.h"

#include "formats/json/json.h"
#include "inference/family/model_family.h"
#include "inference/generate/memory_plan.h"
#include "inference/generate/sampling.h"
#include "tests/inference/generate/example_answers.h"
#include "tests/inference/model/runner.h"
#include "tests/support/test.h"

// Answers of the bundled model: the same by themselves, in a batch, on any number of threads and
// with experts read on demand.

namespace ingot::testing {
namespace {

using inference::GenerateOptions;
using inference::GenerateResult;

Prompts short_prompts() {
  return {golden_ids("prompt0.input_ids"), golden_ids("prompt2.input_ids"),
          golden_ids("prompt3.input_ids")};
}

inference::ModelOptions f32_options(std::size_t threads = 2) {
  return {.profile = inference::Profile::kF32, .threads = threads, .without_mtp = true};
}

TEST(Generate, MixedLengthsGiveTheRecordedAnswers) {
  const OpenedModel opened(kExample, f32_options());
  std::vector<std::vector<std::int32_t>> streamed(3);
  GenerateOptions options = greedy_options();
  options.on_token = [&](std::size_t prompt, std::int32_t token) {
    streamed[prompt].push_back(token);
  };
  const GenerateResult result = generate(opened.model, short_prompts(), options);
  EXPECT_EQ(tokens_of(result), (Prompts{golden_ids("prompt0.greedy"), golden_ids("prompt2.greedy"),
                                        golden_ids("prompt3.greedy")}));
  EXPECT_EQ(streamed, tokens_of(result));
  for (const auto& answer : result.answers) {
    EXPECT_EQ(answer.stop, inference::StopReason::kEos);
    EXPECT_EQ(answer.tokens.back(), 1);
  }
  EXPECT_EQ(result.times.prefill_tokens, 11U + 5 + 52);
  EXPECT_GT(result.times.prefill_seconds, 0);
  EXPECT_GT(result.times.first_token_seconds, 0);
}

TEST(Generate, SampledAnswerIgnoresBatchAndThreads) {
  GenerateOptions options = greedy_options();
  options.sampling = {.temperature = 1.5F, .top_k = 50, .top_p = 0.98F, .seed = 11};
  options.max_new_tokens = 24;
  Prompts prompts = short_prompts();
  prompts.push_back(golden_ids("prompt1.input_ids"));
  const OpenedModel one(kExample, f32_options(1)), two(kExample, f32_options(2));
  const auto together = tokens_of(generate(two.model, prompts, options));
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_EQ(tokens_of(generate(one.model, {&prompts[i], 1}, options))[0], together[i]) << i;
  }
  const Prompts turned(prompts.rbegin(), prompts.rend());
  auto turned_tokens = tokens_of(generate(one.model, turned, options));
  std::ranges::reverse(turned_tokens);
  EXPECT_EQ(turned_tokens, together);
  options.sampling.seed = 12;
  EXPECT_NE(tokens_of(generate(two.model, prompts, options)), together);
}

TEST(Generate, ExpertsReadOnDemandChangeNothing) {
  const auto source = shard::open_source(kExample);
  const Prompts prompts = short_prompts();
  GenerateOptions options = greedy_options();
  options.max_new_tokens = 6;
  const OpenedModel all(kExample, f32_options());
  const auto lengths = inference::final_lengths(all.model.spec(), prompts, 6);
  const inference::RunMemory need = inference::run_memory(source, inference::Profile::kF32,
                                                          inference::KvFormat::kF32, lengths, 2);
  inference::ModelOptions small = f32_options();
  small.weight_limit = inference::weight_limit(need, need.least());
  const OpenedModel on_demand(kExample, small);
  EXPECT_TRUE(all.model.all_experts_resident());
  EXPECT_FALSE(on_demand.model.all_experts_resident());
  EXPECT_EQ(tokens_of(generate(on_demand.model, prompts, options)),
            tokens_of(generate(all.model, prompts, options)));
  EXPECT_GT(on_demand.model.expert_counters().reads, 64U);
  EXPECT_GT(on_demand.model.expert_counters().bytes_read, 0U);
}

// Experts read for one step serve all its tokens.
TEST(Generate, EightPromptsReadLittleMoreThanOne) {
  const auto source = shard::open_source(kExample);
  Prompts prompts;
  const auto text = golden_ids("prompt4.input_ids");
  for (std::ptrdiff_t i = 0; i < 8; ++i)
    prompts.emplace_back(text.begin() + 16 * i, text.begin() + 16 * i + 16);
  GenerateOptions options = greedy_options();
  options.max_new_tokens = 6;
  options.eos.clear();
  inference::ModelOptions small = f32_options();
  const auto bytes_read = [&](std::span<const std::vector<std::int32_t>> some) {
    const auto lengths = inference::final_lengths(inference::model_spec(source), some, 6);
    const inference::RunMemory need = inference::run_memory(source, inference::Profile::kF32,
                                                            inference::KvFormat::kF32, lengths, 2);
    small.weight_limit = need.resident + need.experts / 4;
    const OpenedModel opened(kExample, small);
    const auto before = opened.model.expert_counters().bytes_read;
    generate(opened.model, some, options);
    return opened.model.expert_counters().bytes_read - before;
  };
  std::uint64_t alone = 0;
  for (const auto& prompt : prompts) alone += bytes_read({&prompt, 1});
  const std::uint64_t together = bytes_read(prompts);
  EXPECT_GT(together, alone / 16);
  EXPECT_LT(10 * together, 4 * alone) << together << " of " << alone;
}

TEST(Generate, StopsAtLengthAndContextEnd) {
  const OpenedModel opened(kExample, f32_options());
  GenerateOptions options = greedy_options();
  options.max_new_tokens = 3;
  const Prompts prompts = {golden_ids("prompt1.input_ids")};
  const GenerateResult result = generate(opened.model, prompts, options);
  EXPECT_EQ(result.answers[0].tokens.size(), 3U);
  EXPECT_EQ(result.answers[0].stop, inference::StopReason::kLength);

  std::vector<std::int32_t> nearly_full(1022, 5);
  options.eos.clear();
  options.max_new_tokens = 100;
  const GenerateResult full = generate(opened.model, {&nearly_full, 1}, options);
  EXPECT_EQ(full.answers[0].tokens.size(), 2U);
  EXPECT_EQ(full.answers[0].stop, inference::StopReason::kLength);
}

TEST(Generate, StopsWhenTheCallerWantsNoMore) {
  const OpenedModel opened(kExample, f32_options());
  GenerateOptions options = greedy_options();
  std::size_t n_tokens = 0;
  options.on_token = [&](std::size_t, std::int32_t) { ++n_tokens; };
  options.stop_requested = [&] { return n_tokens == 4; };
  const Prompts prompts = {golden_ids("prompt1.input_ids")};
  const GenerateResult result = generate(opened.model, prompts, options);
  EXPECT_EQ(result.answers[0].tokens.size(), 4U);
  EXPECT_EQ(result.answers[0].stop, inference::StopReason::kStopped);
}

TEST(Generate, StopsInTheMiddleOfAPrompt) {
  const OpenedModel opened(kExample, f32_options());
  GenerateOptions options = greedy_options();
  int left = 20;  // of many that a step asks
  options.stop_requested = [&] { return --left < 0; };
  const Prompts prompts = {golden_ids("prompt1.input_ids")};
  const GenerateResult result = generate(opened.model, prompts, options);
  EXPECT_TRUE(result.answers[0].tokens.empty());
  EXPECT_EQ(result.answers[0].stop, inference::StopReason::kStopped);
}

TEST(Generate, TellsEachAnswerOnceAsItEnds) {
  const OpenedModel opened(kExample, f32_options());
  GenerateOptions options = greedy_options();
  std::vector<std::size_t> ended;
  std::vector<std::vector<std::int32_t>> tokens(3);
  std::size_t n_last = 0;
  options.on_answer = [&](std::size_t prompt, const inference::Answer& answer) {
    EXPECT_GE(answer.tokens.size(), n_last) << "a longer answer came first";
    n_last = answer.tokens.size();
    ended.push_back(prompt);
    tokens.at(prompt) = answer.tokens;
  };
  const GenerateResult result = generate(opened.model, short_prompts(), options);
  EXPECT_EQ(tokens, tokens_of(result));
  std::sort(ended.begin(), ended.end());
  EXPECT_EQ(ended, (std::vector<std::size_t>{0, 1, 2}));

  ended.clear();
  n_last = 0;
  options.stop_requested = [] { return true; };
  generate(opened.model, short_prompts(), options);
  EXPECT_EQ(ended.size(), 3U);
  ended.clear();
  options.max_new_tokens = 0;
  generate(opened.model, short_prompts(), options);
  EXPECT_EQ(ended.size(), 3U);
}

// Sequences that are preempted are computed again, whole and in pieces.
TEST(Generate, ShortCachesChangeNoAnswer) {
  const OpenedModel opened(kExample);
  GenerateOptions options = greedy_options();
  options.max_new_tokens = 90;
  options.eos = {};
  Prompts prompts = short_prompts();
  prompts.push_back(golden_ids("prompt1.input_ids"));
  const Prompts wanted = tokens_of(generate(opened.model, prompts, options));
  options.cache_tokens = 4 * inference::KvCache::kPageTokens;
  for (const auto& [drafts, batch_tokens] : {std::pair<std::size_t, std::size_t>{0, 512}, {2, 7}}) {
    options.drafts = drafts;
    options.batch_tokens = batch_tokens;
    std::uint64_t n_tokens = 0, n_preempted = 0;
    options.on_step = [&, most = batch_tokens](const inference::StepFigures& figures) {
      const std::uint64_t n = figures.prompt_tokens + figures.answer_tokens;
      EXPECT_LE(n + figures.recomputed_tokens, most);
      EXPECT_LE(figures.cached_tokens, figures.cache_capacity);
      n_tokens += n;
      n_preempted += figures.preempted;
    };
    const GenerateResult result = generate(opened.model, prompts, options);
    EXPECT_EQ(tokens_of(result), wanted);
    EXPECT_GT(n_preempted, 0U);
    EXPECT_EQ(result.steps.preempted, n_preempted);
    EXPECT_GT(result.steps.recomputed_tokens, 0U);
    EXPECT_EQ(n_tokens, result.times.prefill_tokens + result.times.decode_tokens);
    EXPECT_EQ(result.times.prefill_tokens, 11U + 5 + 52 + prompts[3].size());
  }
}

TEST(Generate, ArrivalsChangeNoAnswer) {
  const OpenedModel opened(kExample, f32_options());
  GenerateOptions options = greedy_options();
  options.max_new_tokens = 20;
  const Prompts wanted = tokens_of(generate(opened.model, short_prompts(), options));
  options.arrivals = {0, 0.02, 0.15};
  const GenerateResult result = generate(opened.model, short_prompts(), options);
  EXPECT_EQ(tokens_of(result), wanted);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_GE(result.answers[i].first_token_seconds, options.arrivals[i]);
    EXPECT_GE(result.answers[i].end_seconds, result.answers[i].first_token_seconds);
  }
  EXPECT_GT(result.steps.waiting_seconds, 0);
}

TEST(Generate, NothingToGenerateIsNoAnswer) {
  const OpenedModel opened(kExample, f32_options());
  GenerateOptions options = greedy_options();
  options.max_new_tokens = 0;
  const Prompts prompts = {golden_ids("prompt0.input_ids")};
  EXPECT_TRUE(generate(opened.model, prompts, options).answers[0].tokens.empty());
  EXPECT_TRUE(generate(opened.model, Prompts{}, options).answers.empty());
}

TEST(Generate, RefusesPromptsThatCannotBeAnswered) {
  const auto source = shard::open_source(kExample);
  const inference::ModelSpec spec = inference::model_spec(source.family(), source.config());
  const auto lengths = [&](const Prompts& prompts) {
    return inference::final_lengths(spec, prompts, 10);
  };
  expect_error(ErrorCode::kInvalidArgument, {"prompt 1 is empty"}, [&] { lengths({{5}, {}}); });
  expect_error(ErrorCode::kInvalidArgument, {"prompt 0", "2048", "vocabulary of 2048"},
               [&] { lengths({{2048}}); });
  expect_error(ErrorCode::kInvalidArgument, {"-1"}, [&] { lengths({{-1}}); });
  expect_error(ErrorCode::kLimit, {"1025 tokens", "context of 1024"},
               [&] { lengths({std::vector<std::int32_t>(1025, 3)}); });
  EXPECT_EQ(lengths({std::vector<std::int32_t>(1020, 3)}), (std::vector<std::size_t>{1024}));
}

TEST(RunMemory, SaysWhatWouldBeEnough) {
  const auto source = shard::open_source(kExample);
  const std::size_t lengths[] = {1024};
  const inference::RunMemory need = inference::run_memory(source, inference::Profile::kF32,
                                                          inference::KvFormat::kF32, lengths, 1);
  // Five layers of 128 latent, 16 rope and 128 index values.
  EXPECT_EQ(need.cache, 1024U * 5 * (128 + 16 + 128) * 4);
  EXPECT_EQ(inference::weight_limit(need, need.least()), need.resident + need.two_experts);
  expect_error(ErrorCode::kLimit, {"--mem-limit", "would be enough", "for all experts"},
               [&] { inference::weight_limit(need, need.least() - 1); });
}

}  // namespace
}  // namespace ingot::testing

namespace ingot::inference {
namespace {

// How often each token is drawn at positions 0 to n - 1.
std::vector<std::size_t> counts_of(std::span<const float> logits, const SamplingOptions& options,
                                   std::size_t n) {
  std::vector<std::size_t> counts(logits.size());
  for (std::size_t i = 0; i < n; ++i) {
    ++counts[static_cast<std::size_t>(sample_token(logits, options, {.prompt = 7, .position = i}))];
  }
  return counts;
}

TEST(Sampling, GreedyTakesTheLowestOfEqualLogits) {
  EXPECT_EQ(greedy_token(std::array{1.0F, 3.0F, 3.0F}), 1);
  EXPECT_EQ(sample_token(std::array{1.0F, 3.0F, 3.0F}, {.temperature = 0}, {}), 1);
}

TEST(Sampling, DrawsFromTheSoftmaxOfTheLogits) {
  const std::array logits = {std::log(0.5F), std::log(0.3F), std::log(0.15F), std::log(0.05F)};
  constexpr std::size_t kDraws = 40'000;
  const auto counts = counts_of(logits, {}, kDraws);
  const std::array expected = {0.5, 0.3, 0.15, 0.05};
  double chi_square = 0;
  for (std::size_t j = 0; j < counts.size(); ++j) {
    const double wanted = expected[j] * kDraws;
    chi_square += (static_cast<double>(counts[j]) - wanted) *
                  (static_cast<double>(counts[j]) - wanted) / wanted;
  }
  EXPECT_LT(chi_square, 16.3);  // 3 degrees of freedom, p = 0.001
}

TEST(Sampling, TemperatureSharpensAndFlattens) {
  const std::array logits = {0.0F, 1.0F};
  const auto cold = counts_of(logits, {.temperature = 0.1F}, 4000);
  const auto hot = counts_of(logits, {.temperature = 10.0F}, 4000);
  EXPECT_EQ(cold[0], 0U);
  EXPECT_NEAR(static_cast<double>(hot[0]) / 4000, 1 / (1 + std::exp(0.1)), 0.03);
}

TEST(Sampling, TopKKeepsTiesOfItsLast) {
  const auto counts = counts_of(std::array{1.0F, 2.0F, 2.0F, 3.0F}, {.top_k = 2}, 4000);
  EXPECT_EQ(counts[0], 0U);
  EXPECT_GT(counts[1], 0U);
  EXPECT_GT(counts[2], 0U);
  EXPECT_GT(counts[3], 0U);
}

TEST(Sampling, TopPKeepsTheFewestThatReachIt) {
  const std::array logits = {std::log(0.5F), std::log(0.3F), std::log(0.15F), std::log(0.05F)};
  const auto counts = counts_of(logits, {.top_p = 0.75F}, 4000);
  EXPECT_GT(counts[1], 0U);
  EXPECT_EQ(counts[2] + counts[3], 0U);
  EXPECT_EQ(counts_of(logits, {.top_p = 0.0F}, 100)[0], 100U) << "at least one is kept";
}

TEST(Sampling, TopPCountsWhatTopKLeft) {
  const std::array logits = {std::log(0.4F), std::log(0.3F), std::log(0.3F)};
  // Top-k keeps two, and at least 0.5 / 0.7 is reached with both.
  const auto counts = counts_of(std::array{std::log(0.4F), std::log(0.35F), std::log(0.25F)},
                                {.top_k = 2, .top_p = 0.5F}, 2000);
  EXPECT_EQ(counts[0], 2000U) << "0.4 of 0.75 is more than half";
  EXPECT_EQ(counts_of(logits, {.top_p = 1.0F}, 10).size(), 3U);
}

TEST(Sampling, NoiseDependsOnSeedPromptAndPositionAlone) {
  const std::vector<float> logits(50, 0.0F);
  const SampleKey key{.prompt = 3, .position = 9};
  const auto token = sample_token(logits, {.seed = 1}, key);
  EXPECT_EQ(sample_token(logits, {.seed = 1}, key), token);
  std::set<std::int32_t> others;
  for (std::uint64_t i = 0; i < 20; ++i) {
    others.insert(sample_token(logits, {.seed = 100 + i}, key));
    others.insert(sample_token(logits, {.seed = 1}, {.prompt = 3, .position = 10 + i}));
    others.insert(sample_token(logits, {.seed = 1}, {.prompt = 4 + i, .position = 9}));
  }
  EXPECT_GT(others.size(), 20U);
}

TEST(Sampling, ImpossibleTokensAreNeverDrawn) {
  const auto counts = counts_of(std::array{-INFINITY, 0.0F, -200.0F}, {}, 2000);
  EXPECT_EQ(counts[1], 2000U);
}

}  // namespace
}  // namespace ingot::inference

namespace ingot::testing {
namespace {

using inference::GenerationConfig;

GenerationConfig read(const char* text, const char* model = R"({"model_type":"deepseek_v3"})") {
  const TempDir directory;
  if (text != nullptr) std::ofstream(directory / "generation_config.json") << text;
  formats::ModelConfig config;
  config.raw = formats::parse_json(model, "config.json");
  return inference::read_generation_config(directory.path(), config);
}

TEST(GenerationConfig, ReadsWhatTheFileSays) {
  const GenerationConfig config = read(
      R"({"do_sample":true,"temperature":0.6,"top_p":0.95,"top_k":20,"eos_token_id":[1,7],"max_new_tokens":64})");
  EXPECT_TRUE(config.do_sample);
  EXPECT_EQ(config.sampling.temperature, 0.6F);
  EXPECT_EQ(config.sampling.top_p, 0.95F);
  EXPECT_EQ(config.sampling.top_k, 20U);
  EXPECT_EQ(config.eos, (std::vector<std::int32_t>{1, 7}));
  EXPECT_EQ(config.max_new_tokens, 64U);
}

TEST(GenerationConfig, EndTokenFallsBackToConfigJson) {
  EXPECT_EQ(read(nullptr, R"({"eos_token_id":5})").eos, (std::vector<std::int32_t>{5}));
  EXPECT_EQ(read(R"({"eos_token_id":null})", R"({"eos_token_id":[5,6]})").eos,
            (std::vector<std::int32_t>{5, 6}));
  EXPECT_EQ(read(R"({"eos_token_id":2})", R"({"eos_token_id":5})").eos,
            (std::vector<std::int32_t>{2}));
}

TEST(GenerationConfig, WithoutAFileNothingIsSampled) {
  const GenerationConfig config = read(nullptr);
  EXPECT_FALSE(config.do_sample);
  EXPECT_TRUE(config.eos.empty());
  EXPECT_FALSE(config.max_new_tokens.has_value());
}

TEST(GenerationConfig, NamesTheKeyThatIsWrong) {
  for (const char* text : {R"({"temperature":"hot"})", R"({"temperature":-1})"}) {
    expect_error(ErrorCode::kCorrupt, {"generation_config.json", "temperature"},
                 [&] { read(text); });
  }
  expect_error(ErrorCode::kCorrupt, {"top_p"}, [] { read(R"({"top_p":1.5})"); });
  expect_error(ErrorCode::kCorrupt, {"eos_token_id"}, [] { read(R"({"eos_token_id":"x"})"); });
  expect_error(ErrorCode::kCorrupt, {"do_sample"}, [] { read(R"({"do_sample":1})"); });
  expect_error(ErrorCode::kCorrupt, {"config.json", "eos_token_id"},
               [] { read(nullptr, R"({"eos_token_id":-3})"); });
  expect_error(ErrorCode::kCorrupt, {"not a JSON object"}, [] { read("[]"); });
}

}  // namespace
}  // namespace ingot::testing
