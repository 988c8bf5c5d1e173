#include "shard/cut/topology.h"

#include <array>
#include <map>
#include <tuple>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace ingot::shard {
namespace {

using ingot::testing::expect_error;

TEST(Topology, WithoutExpertParallelismTpCutsTheExperts) {
  const Topology topology = make_topology(8, 1, std::nullopt, 1);
  EXPECT_EQ(topology.etp, 8U);
  EXPECT_EQ(topology.n_ranks(), 8U);
}

TEST(Topology, ExpertParallelismLeavesExpertsWhole) {
  const Topology topology = make_topology(8, 16, std::nullopt, 1);
  EXPECT_EQ(topology.etp, 1U);
  EXPECT_EQ(topology.n_ranks(), 16U);
  // Two data-parallel groups of TP 8, one expert group of 16.
  for (std::uint32_t rank = 0; rank < 16; ++rank) {
    const RankPosition at = topology.position(rank);
    EXPECT_EQ(at.tp_rank, rank % 8);
    EXPECT_EQ(at.ep_rank, rank);
    EXPECT_EQ(at.etp_rank, 0U);
  }
}

TEST(Topology, FewerTpRanksThanExpertRanksRepeat) {
  const Topology topology = make_topology(2, 4, std::nullopt, 1);
  EXPECT_EQ(topology.n_ranks(), 4U);
  const std::array<std::array<std::uint32_t, 2>, 4> tp_ep = {{{0, 0}, {1, 1}, {0, 2}, {1, 3}}};
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(topology.position(rank).tp_rank, tp_ep[rank][0]);
    EXPECT_EQ(topology.position(rank).ep_rank, tp_ep[rank][1]);
  }
}

TEST(Topology, StageHasLeastCommonMultipleOfRanks) {
  EXPECT_EQ(make_topology(4, 3, 2, 1).n_ranks(), 12U);  // lcm(4, 6)
  EXPECT_EQ(make_topology(6, 2, 2, 1).n_ranks(), 12U);  // lcm(6, 4)
  EXPECT_EQ(make_topology(8, 2, 4, 1).n_ranks(), 8U);   // lcm(8, 8)
  EXPECT_EQ(make_topology(8, 1, 2, 1).n_ranks(), 8U);   // lcm(8, 2)
  EXPECT_EQ(make_topology(1, 4, 2, 3).n_ranks(), 24U);  // 3 x lcm(1, 8)
  EXPECT_EQ(make_topology(1, 1, std::nullopt, 1).n_ranks(), 1U);
  EXPECT_TRUE(make_topology(1, 1, std::nullopt, 1).is_single());
  EXPECT_FALSE(make_topology(1, 1, std::nullopt, 2).is_single());
}

TEST(Topology, PositionsFollowTheNumberingRule) {
  const Topology topology = make_topology(4, 3, 2, 2);
  // stage, tp, ep, etp
  const std::array<std::array<std::uint32_t, 4>, 24> table = {{
      {0, 0, 0, 0}, {0, 1, 0, 1}, {0, 2, 1, 0}, {0, 3, 1, 1}, {0, 0, 2, 0}, {0, 1, 2, 1},
      {0, 2, 0, 0}, {0, 3, 0, 1}, {0, 0, 1, 0}, {0, 1, 1, 1}, {0, 2, 2, 0}, {0, 3, 2, 1},
      {1, 0, 0, 0}, {1, 1, 0, 1}, {1, 2, 1, 0}, {1, 3, 1, 1}, {1, 0, 2, 0}, {1, 1, 2, 1},
      {1, 2, 0, 0}, {1, 3, 0, 1}, {1, 0, 1, 0}, {1, 1, 1, 1}, {1, 2, 2, 0}, {1, 3, 2, 1},
  }};
  ASSERT_EQ(topology.n_ranks(), table.size());
  for (std::uint32_t rank = 0; rank < table.size(); ++rank) {
    const RankPosition at = topology.position(rank);
    EXPECT_EQ(at.rank, rank);
    EXPECT_EQ(at.stage, table[rank][0]) << rank;
    EXPECT_EQ(at.tp_rank, table[rank][1]) << rank;
    EXPECT_EQ(at.ep_rank, table[rank][2]) << rank;
    EXPECT_EQ(at.etp_rank, table[rank][3]) << rank;
  }
}

TEST(Topology, EverySliceIsHeldEquallyOften) {
  for (const std::uint32_t tp : {1U, 2U, 3U, 4U, 8U}) {
    for (const std::uint32_t ep : {1U, 2U, 3U, 5U, 16U}) {
      for (const std::uint32_t etp : {1U, 2U, 3U, 4U}) {
        const Topology topology = make_topology(tp, ep, etp, 1);
        std::map<std::uint32_t, std::uint32_t> by_tp;
        std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> by_expert_slice;
        for (std::uint32_t rank = 0; rank < topology.n_ranks(); ++rank) {
          const RankPosition at = topology.position(rank);
          ++by_tp[at.tp_rank];
          ++by_expert_slice[{at.ep_rank, at.etp_rank}];
        }
        EXPECT_EQ(by_tp.size(), tp);
        EXPECT_EQ(by_expert_slice.size(), ep * etp);
        for (const auto& [at, n] : by_tp) EXPECT_EQ(n, topology.n_ranks() / tp);
        for (const auto& [at, n] : by_expert_slice) EXPECT_EQ(n, topology.n_ranks() / (ep * etp));
      }
    }
  }
}

TEST(Topology, RefusesZeros) {
  expect_error(ErrorCode::kInvalidArgument, {"--tp is 0"}, [] { make_topology(0, 1, 1, 1); });
  expect_error(ErrorCode::kInvalidArgument, {"--ep is 0"}, [] { make_topology(1, 0, 1, 1); });
  expect_error(ErrorCode::kInvalidArgument, {"--etp is 0"}, [] { make_topology(1, 1, 0, 1); });
  expect_error(ErrorCode::kInvalidArgument, {"--pp is 0"}, [] { make_topology(1, 1, 1, 0); });
}

TEST(Topology, RefusesMoreRanksThanItCanHold) {
  EXPECT_EQ(make_topology(1, 320, std::nullopt, 1).n_ranks(), 320U);
  EXPECT_EQ(make_topology(kMaxRanks, 1, std::nullopt, 1).n_ranks(), kMaxRanks);
  expect_error(ErrorCode::kInvalidArgument, {"--ep is 4097", "4096"},
               [] { make_topology(1, 4097, std::nullopt, 1); });
  expect_error(ErrorCode::kInvalidArgument, {"needs 8192 ranks"},
               [] { make_topology(4096, 1, std::nullopt, 2); });
  expect_error(ErrorCode::kInvalidArgument, {"needs 16769025 ranks"},
               [] { make_topology(4095, 4095, 4095, 1); });
  expect_error(ErrorCode::kInvalidArgument, {"--tp is 4294967295"},
               [] { make_topology(0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF); });
}

TEST(Topology, DirectoriesAreNumberedByRank) {
  EXPECT_EQ(rank_directory_name(3, 16), "rank-00003-of-00016");
  EXPECT_EQ(rank_directory_name(319, 320), "rank-00319-of-00320");
}

}  // namespace
}  // namespace ingot::shard
