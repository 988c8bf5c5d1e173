#include "inference/generate/coordinator.h"

#include <vector>

#include <gtest/gtest.h>

#include "inference/parallel/thread_comm.h"

// Decisions that all ranks make alike between two steps.

namespace ingot::testing {
namespace {

using namespace inference;
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
