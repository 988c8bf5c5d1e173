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

#include "inference/generate/generate.h"
#include "inference/parallel/rank_view.h"
#include "inference/parallel/thread_comm.h"
#include "tests/inference/model/runner.h"

// Data-parallel groups with prompts of their own, of any number and length, also none, take their
// steps together: nobody hangs, and everybody gets the answers of one rank.

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

/// What the ranks are asked.
struct Schedule {
  Prompts prompts;
  std::size_t max_new_tokens = 0;
  bool is_greedy = false;
  /// A rank that asks for the end before its n-th step.
  std::optional<std::uint32_t> stopping_rank;
  std::size_t stops_at = 0;

  explicit Schedule(std::mt19937& random, std::uint32_t n_ranks) {
    const auto below = [&](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
    prompts.resize(below(6));
    for (auto& prompt : prompts) {
      prompt.resize(1 + below(below(2) == 0 ? 3 : 24));
      for (std::int32_t& token : prompt) token = static_cast<std::int32_t>(below(512));
    }
    max_new_tokens = below(7);
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
    if (rank && rank == stopping_rank)
      options.stop_requested = [left = stops_at]() mutable { return left-- == 0; };
    return options;
  }
};

void expect_begins(const Answer& is, const Answer& whole) {
  ASSERT_LE(is.tokens.size(), whole.tokens.size());
  EXPECT_TRUE(std::equal(is.tokens.begin(), is.tokens.end(), whole.tokens.begin()));
}

class Schedules : public ::testing::TestWithParam<shard::Topology> {
 protected:
  static constexpr std::size_t kSchedules = 50;  // four times
  const std::filesystem::path model_ =
      std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden/arch/deepseek_v3/checkpoint";
};

TEST_P(Schedules, EndWithTheAnswersOfOneRank) {
  const Watchdog watchdog;
  const shard::Topology topology = GetParam();
  std::mt19937 random(topology.n_ranks());
  std::vector<Schedule> schedules;
  for (std::size_t i = 0; i < kSchedules; ++i) schedules.emplace_back(random, topology.n_ranks());
  const formats::Checkpoint source = shard::open_source(model_);
  std::vector<std::vector<GenerateResult>> results(topology.n_ranks());
  run_ranks(topology, [&](std::uint32_t rank, Comm& comm) {
    RankView view = {.topology = topology, .rank = rank};
    if (topology.pp == 2) view.stages.first = {0, 1, 3};
    const Model model(source, view, comm, f32_options());
    for (const Schedule& schedule : schedules)
      results[rank].push_back(generate(model, schedule.prompts, schedule.options(rank)));
  });

  const OpenedModel whole(model_);
  for (std::size_t s = 0; s < kSchedules; ++s) {
    const Schedule& schedule = schedules[s];
    const GenerateResult wanted =
        generate(whole.model, schedule.prompts, schedule.options(std::nullopt));
    for (std::uint32_t rank = 0; rank < topology.n_ranks(); ++rank) {
      const GenerateResult& is = results[rank][s];
      ASSERT_EQ(is.answers.size(), schedule.prompts.size());
      EXPECT_EQ(is.times.prefill_tokens, results[0][s].times.prefill_tokens);
      for (std::size_t i = 0; i < is.answers.size(); ++i) {
        EXPECT_EQ(is.answers[i].tokens, results[0][s].answers[i].tokens);
        EXPECT_EQ(is.answers[i].stop, results[0][s].answers[i].stop);
        expect_begins(is.answers[i], wanted.answers[i]);
        if (is.answers[i].stop == StopReason::kStopped) continue;
        EXPECT_EQ(is.answers[i].tokens, wanted.answers[i].tokens);
        EXPECT_EQ(is.answers[i].stop, wanted.answers[i].stop);
      }
      if (schedule.stopping_rank) continue;
      EXPECT_EQ(is.times.decode_tokens, wanted.times.decode_tokens);
      // Sums over slices may differ in their last bits, and so may what is near.
      EXPECT_TRUE(topology.tp > 1 || topology.etp > 1 || is.near_ties == wanted.near_ties);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Topologies, Schedules,
                         ::testing::Values(shard::Topology{.ep = 4},
                                           shard::Topology{.tp = 2, .ep = 4},
                                           shard::Topology{.ep = 2, .pp = 2},
                                           shard::Topology{.tp = 1, .ep = 2, .etp = 2}),
                         [](const auto& suite) {
                           const shard::Topology& of = suite.param;
                           return fmt::format("tp{}_ep{}_etp{}_pp{}", of.tp, of.ep, of.etp, of.pp);
                         });

}  // namespace
}  // namespace ingot::testing
