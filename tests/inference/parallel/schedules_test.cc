#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <optional>
#include <random>
#include <stop_token>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "inference/family/model_family.h"
#include "inference/generate/generate.h"
#include "inference/parallel/rank_view.h"
#include "inference/parallel/thread_comm.h"
#include "tests/inference/model/runner.h"

// Data-parallel groups with prompts of their own, of any number and length, also none, whenever
// they arrive, take their steps together: no rank hangs, and all get the answers of one rank that
// has room for everything.

namespace ingot::testing {
namespace {

using namespace inference;
using Prompts = std::vector<std::vector<std::int32_t>>;

/// Ends the program when a test has not ended after some minutes: a rank waits for ever.
class Watchdog {
 public:
  Watchdog()
      : thread_([this](const std::stop_token& stop) {
          std::unique_lock lock(mutex_);
          changed_.wait_for(lock, stop, std::chrono::minutes(5), [] { return false; });
          if (stop.stop_requested()) return;
          std::fputs("ranks wait for each other\n", stderr);
          std::abort();
        }) {}

 private:
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::jthread thread_;
};

/// The requests to the ranks.
struct Schedule {
  Schedule() = default;
  Prompts prompts;
  std::size_t max_new_tokens = 0, batch_tokens = 512, cache_tokens = 0, drafts = 0;
  std::vector<double> arrivals;
  bool is_greedy = false;
  /// A rank that asks for the end before its n-th step.
  std::optional<std::uint32_t> stopping_rank;
  std::size_t stops_at = 0;

  Schedule(std::mt19937& random, std::uint32_t n_ranks, std::uint32_t most_drafts) {
    const auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
    prompts.resize(below(6));
    for (auto& prompt : prompts) {
      prompt.resize(below(3) == 0 ? 58 + below(6) : 1 + below(below(2) == 0 ? 3 : 24));
      for (std::int32_t& token : prompt) token = static_cast<std::int32_t>(below(512));
    }
    max_new_tokens = below(10);
    batch_tokens = below(2) == 0 ? 512 : 1 + below(12);
    cache_tokens = below(2) == 0 ? 0 : 2 * KvCache::kPageTokens;
    drafts = below(most_drafts + 1);
    for (std::size_t i = 0; i < prompts.size() && max_new_tokens % 2 == 1; ++i)
      arrivals.push_back(0.002 * static_cast<double>(i));
    is_greedy = below(2) == 0;
    if (below(4) != 0) return;
    stopping_rank = below(n_ranks);
    stops_at = below(6);
  }

  [[nodiscard]] GenerateOptions options(std::optional<std::uint32_t> rank) const {
    GenerateOptions options;
    options.sampling = {.temperature = is_greedy ? 0.0F : 1.0F, .top_k = 20, .seed = 5};
    options.max_new_tokens = max_new_tokens;
    options.eos = {1};
    options.kv_format = KvFormat::kF32;
    if (!rank) return options;
    options.batch_tokens = batch_tokens;
    options.cache_tokens = cache_tokens;
    options.drafts = drafts;
    options.arrivals = arrivals;
    if (rank == stopping_rank)
      options.stop_requested = [left = stops_at]() mutable { return left-- == 0; };
    return options;
  }
};

void expect_begins(const Answer& is, const Answer& whole) {
  ASSERT_LE(is.tokens.size(), whole.tokens.size());
  EXPECT_TRUE(std::equal(is.tokens.begin(), is.tokens.end(), whole.tokens.begin()));
}

const std::filesystem::path kRoot = INGOT_SOURCE_DIR;
const std::filesystem::path kSmallest = kRoot / "tests/golden/arch/deepseek_v3/checkpoint";
const std::filesystem::path kExample = kRoot / "examples/tiny-v32";

class Schedules : public ::testing::TestWithParam<shard::Topology> {
 protected:
  static std::vector<Schedule> random_schedules(std::size_t n, std::uint32_t most_drafts) {
    const std::uint32_t n_ranks = GetParam().n_ranks();
    std::mt19937 random(n_ranks);
    std::vector<Schedule> schedules;
    for (std::size_t i = 0; i < n; ++i) schedules.emplace_back(random, n_ranks, most_drafts);
    return schedules;
  }

  /// Returns how many sequences were put back.
  static std::size_t expect_answers_of_one_rank(const std::filesystem::path& directory,
                                                std::span<const Schedule> schedules) {
    const Watchdog watchdog;
    const shard::Topology topology = GetParam();
    const formats::Checkpoint source = shard::open_source(directory);
    std::vector<std::vector<GenerateResult>> results(topology.n_ranks());
    run_ranks(topology, [&](std::uint32_t rank, Comm& comm) {
      RankView view = {.topology = topology, .rank = rank};
      if (topology.pp == 2)
        view.stages.first = {0, 1, static_cast<std::uint32_t>(model_spec(source).n_main)};
      const Model model(source, view, comm, f32_options());
      for (const Schedule& schedule : schedules)
        results[rank].push_back(generate(model, schedule.prompts, schedule.options(rank)));
    });

    const OpenedModel whole(directory);
    std::size_t n_put_back = 0;
    for (std::size_t s = 0; s < schedules.size(); ++s) {
      const GenerateResult wanted =
          generate(whole.model, schedules[s].prompts, schedules[s].options(std::nullopt));
      for (const auto& of_rank : results) expect_same(schedules[s], of_rank[s], wanted);
      for (const auto& of_rank : results) {
        EXPECT_EQ(of_rank[s].times.prefill_tokens, results[0][s].times.prefill_tokens);
        EXPECT_EQ(tokens_of(of_rank[s]), tokens_of(results[0][s]));
      }
      n_put_back += results[0][s].steps.put_back;
    }
    return n_put_back;
  }

 private:
  static Prompts tokens_of(const GenerateResult& result) {
    Prompts tokens;
    for (const Answer& answer : result.answers) tokens.push_back(answer.tokens);
    return tokens;
  }

  static void expect_same(const Schedule& schedule, const GenerateResult& is,
                          const GenerateResult& wanted) {
    ASSERT_EQ(is.answers.size(), schedule.prompts.size());
    for (std::size_t i = 0; i < is.answers.size(); ++i) {
      expect_begins(is.answers[i], wanted.answers[i]);
      if (is.answers[i].stop == StopReason::kStopped) continue;
      EXPECT_EQ(is.answers[i].tokens, wanted.answers[i].tokens);
      EXPECT_EQ(is.answers[i].stop, wanted.answers[i].stop);
    }
    if (schedule.stopping_rank) return;
    EXPECT_EQ(is.times.prefill_tokens, wanted.times.prefill_tokens);
    EXPECT_EQ(is.times.decode_tokens, wanted.times.decode_tokens);
    // Sums over slices may differ in their last bits, and so may logits that are close.
    const shard::Topology& topology = GetParam();
    if (topology.tp > 1 || topology.etp > 1 || schedule.drafts > 0 || is.steps.put_back > 0) return;
    EXPECT_TRUE(is.near_ties == wanted.near_ties);
  }
};

TEST_P(Schedules, EndWithTheAnswersOfOneRank) {
  expect_answers_of_one_rank(kSmallest, random_schedules(25, 0));
}

TEST_P(Schedules, EndWithTheSameAnswersWithDrafts) {
  expect_answers_of_one_rank(kExample, random_schedules(4, 3));
}

// Each group has more than its caches hold.
TEST_P(Schedules, EndWhereCachesAreShort) {
  std::vector<Schedule> schedules(1);
  for (std::int32_t i = 0; i < 12; ++i) schedules[0].prompts.push_back({20 + i, 7, 9});
  schedules[0].max_new_tokens = 80;
  schedules[0].cache_tokens = 3 * KvCache::kPageTokens;
  EXPECT_GT(expect_answers_of_one_rank(kSmallest, schedules), 0U);
}

std::string topology_name(const ::testing::TestParamInfo<shard::Topology>& suite) {
  const shard::Topology& of = suite.param;
  return fmt::format("tp{}_ep{}_etp{}_pp{}", of.tp, of.ep, of.etp, of.pp);
}

INSTANTIATE_TEST_SUITE_P(Topologies, Schedules,
                         ::testing::Values(shard::Topology{.tp = 2, .ep = 4},
                                           shard::Topology{.ep = 2, .pp = 2}),
                         topology_name);
INSTANTIATE_TEST_SUITE_P(SlowTopologies, Schedules,
                         ::testing::Values(shard::Topology{.ep = 4},
                                           shard::Topology{.tp = 1, .ep = 2, .etp = 2}),
                         topology_name);

}  // namespace
}  // namespace ingot::testing
