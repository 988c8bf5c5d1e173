#include "inference/generate/scheduler.h"

#include "formats/base/checked.h"
#include "inference/cache/kv_cache.h"
#include "inference/generate/coordinator.h"
#include "inference/parallel/thread_comm.h"
#include "tests/support/test.h"

// Which tokens a step takes, with answers of any length in the place of a model.

namespace ingot::testing {
namespace {

using namespace inference;

constexpr std::size_t kPage = KvCache::kPageTokens;

/// A sequence as the caches and its answer have it.
struct Simulated {
  std::size_t prompt = 0, most = 0, length = 0;  ///< its answer ends at `length` tokens
  std::size_t known = 0, cached = 0, proposed = 0;
  bool runs = false;
};

/// Takes steps until no sequence is left, and checks every one of them against the rules.
class Simulation {
 public:
  Simulation(const SchedulerLimits& limits, std::uint32_t seed)
      : limits_(limits), scheduler_(limits), random_(seed) {}

  void add(std::size_t prompt, std::size_t most) {
    const std::size_t id = n_added_++;
    sequences_[id] = {.prompt = prompt,
                      .most = most,
                      .length = prompt + 1 + random_() % (most - prompt),
                      .known = prompt};
    scheduler_.add(id, prompt, most);
  }

  /// False when no sequence is left.
  bool step() {
    const Scheduler::Step step = scheduler_.next();
    for (const std::size_t id : step.preempted) {
      Simulated& sequence = sequences_.at(id);
      EXPECT_TRUE(sequence.runs);
      EXPECT_GT(entered_at_.at(id), oldest_entry()) << "the oldest was preempted";
      sequence.runs = false;
      sequence.cached = sequence.proposed = 0;
      ++n_preempted;
    }
    for (const std::size_t id : step.entered) {
      EXPECT_FALSE(sequences_.at(id).runs);
      EXPECT_TRUE(ever_entered_.contains(id) || id == ever_entered_.size()) << "out of order";
      ever_entered_.insert(id);
      sequences_.at(id).runs = true;
      entered_at_[id] = n_entries_++;
    }
    std::size_t n_rows = 0;
    for (const Scheduler::Share& share : step.shares) {
      n_rows += share.count;
      check(share);
    }
    EXPECT_LE(n_rows, limits_.batch_tokens);
    EXPECT_LE(pages(step), limits_.cache_pages);
    largest_step = std::max(largest_step, n_rows);
    EXPECT_EQ(step.shares.empty(), sequences_.empty());
    for (const Scheduler::Share& share : step.shares) take(share);
    return !step.shares.empty();
  }

  void run() {
    while (step()) {
    }
    EXPECT_EQ(scheduler_.outstanding(), 0U);
    EXPECT_EQ(scheduler_.n_running() + scheduler_.n_waiting(), 0U);
  }

  std::size_t n_preempted = 0, largest_step = 0;

 private:
  [[nodiscard]] std::size_t oldest_entry() const {
    std::size_t oldest = SIZE_MAX;
    for (const auto& [id, sequence] : sequences_) {
      if (sequence.runs) oldest = std::min(oldest, entered_at_.at(id));
    }
    return oldest;
  }

  void check(const Scheduler::Share& share) const {
    const Simulated& sequence = sequences_.at(share.id);
    EXPECT_TRUE(sequence.runs);
    EXPECT_EQ(share.first, sequence.cached);
    EXPECT_GT(share.count, 0U);
    EXPECT_LE(share.first + share.count, sequence.known + sequence.proposed);
    if (share.first >= sequence.prompt) return;
    EXPECT_LE(share.first + share.count, sequence.prompt);
    EXPECT_EQ(share.first / kPrefillRows, (share.first + share.count - 1) / kPrefillRows);
  }

  /// Pages that a cache takes when the step is computed, proposals included.
  [[nodiscard]] std::size_t pages(const Scheduler::Step& step) const {
    std::size_t n_pages = 0;
    for (const auto& [id, sequence] : sequences_) {
      if (!sequence.runs) continue;
      std::size_t n_tokens = sequence.cached;
      for (const Scheduler::Share& share : step.shares) {
        if (share.id == id) n_tokens += share.count;
      }
      n_pages += ceil_div(n_tokens, kPage);
    }
    return n_pages;
  }

  void take(const Scheduler::Share& share) {
    Simulated& sequence = sequences_.at(share.id);
    const std::size_t end = share.first + share.count;
    if (end < sequence.known) {
      sequence.cached = end;
    } else {
      // Some of the proposals hold, and one token follows.
      const std::size_t n_held = random_() % (end - sequence.known + 1);
      sequence.cached = std::min(sequence.known + n_held, sequence.length - 1);
      sequence.known = sequence.cached + 1;
    }
    if (sequence.known == sequence.length) {
      scheduler_.finish(share.id);
      sequences_.erase(share.id);
      return;
    }
    sequence.proposed = 0;
    if (limits_.drafts > 0 && sequence.known == sequence.cached + 1 &&
        sequence.known > sequence.prompt)
      sequence.proposed =
          std::min(random_() % (limits_.drafts + 1), sequence.most - sequence.known - 1);
    scheduler_.advance(share.id, sequence.cached, sequence.known, sequence.proposed);
  }

  SchedulerLimits limits_;
  Scheduler scheduler_;
  std::mt19937_64 random_;
  std::map<std::size_t, Simulated> sequences_;
  std::map<std::size_t, std::size_t> entered_at_;
  std::set<std::size_t> ever_entered_;
  std::size_t n_entries_ = 0, n_added_ = 0;
};

TEST(Scheduler, BringsEverySequenceToItsEnd) {
  std::size_t n_preempted = 0;
  for (std::uint32_t seed = 0; seed < 400; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](std::uint32_t n) { return random() % n; };
    const SchedulerLimits limits{.batch_tokens = below(3) == 0 ? 1 + below(20) : 512,
                                 .cache_pages = 12 + below(20),
                                 .drafts = below(4)};
    Simulation simulation(limits, seed);
    const auto n = static_cast<std::uint32_t>(1 + below(20));
    for (std::uint32_t i = 0; i < n; ++i) {
      const std::size_t prompt = 1 + below(below(3) == 0 ? 600 : 40);
      simulation.add(prompt, prompt + 1 + below(160));
      if (below(2) == 0) simulation.step();  // others arrive later
    }
    simulation.run();
    n_preempted += simulation.n_preempted;
  }
  EXPECT_GT(n_preempted, 50U) << "caches were never short";
}

TEST(Scheduler, AnswersComeBeforePrompts) {
  Scheduler scheduler({.batch_tokens = 8, .cache_pages = 100});
  scheduler.add(0, 3, 30);
  scheduler.add(1, 20, 30);
  Scheduler::Step step = scheduler.next();
  EXPECT_EQ(step.entered, (std::vector<std::size_t>{0, 1}));
  ASSERT_EQ(step.shares.size(), 2U);
  EXPECT_EQ(step.shares[1].count, 5U) << "what the first left";
  scheduler.advance(0, 3, 4);
  scheduler.advance(1, 5, 20);
  step = scheduler.next();
  EXPECT_EQ(step.shares[0].id, 0U);
  EXPECT_EQ(step.shares[0].count, 1U);
  EXPECT_EQ(step.shares[1].count, 7U);
}

TEST(Scheduler, YoungestIsPutBackWhenCachesAreShort) {
  Scheduler scheduler({.cache_pages = 4});
  scheduler.add(0, 60, 3 * kPage);
  scheduler.add(1, 60, 3 * kPage);
  EXPECT_EQ(scheduler.next().entered.size(), 2U);
  scheduler.advance(0, 128, 129);
  scheduler.advance(1, 127, 128);
  const Scheduler::Step step = scheduler.next();
  EXPECT_EQ(step.preempted, std::vector<std::size_t>{1});
  ASSERT_EQ(step.shares.size(), 1U);
  EXPECT_EQ(step.shares[0].id, 0U);
  scheduler.finish(0);
  const Scheduler::Step anew = scheduler.next();
  ASSERT_EQ(anew.shares.size(), 1U);
  EXPECT_EQ(anew.shares[0].first, 0U);
  EXPECT_EQ(anew.shares[0].count, 60U) << "the prompt apart from its answer";
}

TEST(Scheduler, RefusesWhatNeverFits) {
  Scheduler scheduler({.cache_pages = 2});
  expect_error(ErrorCode::kLimit, {"129 tokens", "128"}, [&] { scheduler.add(0, 5, 129); });
  expect_error(ErrorCode::kInvalidArgument, {"at least one token"},
               [] { Scheduler({.batch_tokens = 0}); });
}

// Decisions that all ranks make alike between two steps.

using Next = Coordinator::Next;
using Requests = std::vector<std::size_t>;

/// Two data-parallel groups of two ranks, experts over all four.
constexpr shard::Topology kTopology{.tp = 2, .ep = 4};

TEST(Coordinator, RequestsGoWhereLeastIsOutstanding) {
  const std::vector<std::size_t> costs = {100, 10, 10, 10, 100, 5};
  std::vector<Requests> given(4);
  run_ranks(kTopology, [&](std::uint32_t rank, Comm& comm) {
    const RankView view{.topology = kTopology, .rank = rank};
    Coordinator coordinator(view, comm, costs, {});
    EXPECT_EQ(coordinator.n_groups(), 2U);
    EXPECT_EQ(coordinator.group(), rank / 2);
    EXPECT_EQ(coordinator.owner(0), std::nullopt);
    const auto decision = coordinator.meet(rank < 2 ? 3 : 0, nullptr, false);
    EXPECT_EQ(decision.next, Next::kStep);
    EXPECT_FALSE(decision.figures);
    given[rank] = decision.requests;
    EXPECT_EQ(coordinator.owner(1), 0U);
  });
  // 3 and 0; 3 and 100; 13; 23; 33; 133 and 100.
  EXPECT_EQ(given[0], (Requests{1, 2, 3, 4}));
  EXPECT_EQ(given[1], given[0]);
  EXPECT_EQ(given[2], (Requests{0, 5}));
  EXPECT_EQ(given[3], given[2]);
}

TEST(Coordinator, EndsWhenNobodyHasWork) {
  const std::vector<std::size_t> costs = {0};
  run_ranks(kTopology, [&](std::uint32_t rank, Comm& comm) {
    const RankView view{.topology = kTopology, .rank = rank};
    Coordinator coordinator(view, comm, costs, {});
    EXPECT_EQ(coordinator.meet(rank < 2 ? 0 : 1, nullptr, false).next, Next::kStep);
    EXPECT_EQ(coordinator.meet(0, nullptr, false).next, Next::kEnd);
    EXPECT_EQ(coordinator.meet(5, nullptr, rank == 3).next, Next::kStopped);
  });
}

TEST(Coordinator, WaitsForRequestsThatAreStillToArrive) {
  const std::vector<std::size_t> costs = {4, 6};
  const std::vector<double> arrivals = {0, 0.05};
  run_ranks(kTopology, [&](std::uint32_t rank, Comm& comm) {
    const RankView view{.topology = kTopology, .rank = rank};
    Coordinator coordinator(view, comm, costs, arrivals);
    coordinator.meet(0, nullptr, false);
    Next next = Next::kWait;
    std::size_t n_requests = 0;
    while (next == Next::kWait) {
      const auto decision = coordinator.meet(0, nullptr, false);
      next = decision.next;
      n_requests += decision.requests.size();
    }
    EXPECT_TRUE(coordinator.owner(1).has_value());
    EXPECT_LE(n_requests, 1U);
    if (rank == 0) {
      EXPECT_GE(coordinator.now(), 0.05);
    }
  });
}

TEST(Coordinator, AddsUpWhatEveryRankDid) {
  std::vector<StepFigures> figures(4);
  run_ranks(kTopology, [&](std::uint32_t rank, Comm& comm) {
    const RankView view{.topology = kTopology, .rank = rank};
    Coordinator coordinator(view, comm, {}, {});
    coordinator.meet(1, nullptr, false);
    comm.start({.group = Group::kTensor, .name = "test"}, {Bytes(10), Bytes(10)});
    comm.finish({.group = Group::kTensor, .name = "test"});
    StepCounts counts;
    if (rank < 2) {
      counts.prompt_tokens = 5;
      counts.answer_tokens = 2;
      counts.sequences = 3;
      counts.cached_tokens = 7;
    }
    counts.expert_tokens = 10 * rank;
    counts.expert_bytes_read = 100;
    const auto decision = coordinator.meet(1, &counts, false);
    ASSERT_TRUE(decision.figures);
    figures[rank] = *decision.figures;
  });
  for (const StepFigures& all : figures) {
    EXPECT_EQ(all.prompt_tokens, 5U) << "once for each tensor group";
    EXPECT_EQ(all.answer_tokens, 2U);
    EXPECT_EQ(all.sequences, 3U);
    EXPECT_EQ(all.cached_tokens, 7U);
    EXPECT_EQ(all.dummy, 1U);
    EXPECT_EQ(all.expert_tokens, 60U);
    EXPECT_EQ(all.expert_bytes_read, 400U);
    EXPECT_DOUBLE_EQ(all.imbalance, 2.0);
    // One each in the tensor group, and three each at the first meeting.
    EXPECT_EQ(all.messages, 4U + 12U);
    EXPECT_EQ(all.bytes % 12, 4U);
  }
}

}  // namespace
}  // namespace ingot::testing
