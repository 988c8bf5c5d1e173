#include "shard/cut/expert_balance.h"

#include "tests/support/test.h"

namespace ingot::shard {
namespace {

using ingot::testing::expect_error;
using ::testing::ElementsAre;

using Loads = std::vector<std::uint64_t>;

Loads random_loads(std::uint32_t n, double skew, std::uint32_t seed) {
  std::mt19937 random(seed);
  Loads loads(n);
  for (std::uint64_t& load : loads) {
    const double u = static_cast<double>(random() % 10000 + 1) / 10000;
    load = static_cast<std::uint64_t>(100 * std::pow(u, -skew));
  }
  return loads;
}

TEST(BalancedSlots, HoldEveryExpertAndFillEveryRank) {
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    const std::uint32_t n = 8U << seed % 3;
    const BalanceShape shape{.slots = n + 8 * (seed % 4), .ep = 8};
    const Loads loads = random_loads(n, 0.4 * (seed % 5), seed);
    const auto slots = balanced_slots(loads, shape);
    ASSERT_EQ(slots.size(), shape.slots);
    EXPECT_EQ(std::set<std::uint32_t>(slots.begin(), slots.end()).size(), n);
    EXPECT_EQ(slots, balanced_slots(loads, shape));
    for (std::uint32_t rank = 0; rank < shape.ep; ++rank) {
      const auto first = slots.begin() + rank * (shape.slots / shape.ep);
      EXPECT_TRUE(std::is_sorted(first, first + shape.slots / shape.ep));
    }
  }
}

TEST(BalancedSlots, AreNeverWorseThanBlocks) {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    const Loads loads = random_loads(32, 0.3 * (seed % 7), seed);
    std::vector<std::uint32_t> blocks(32);
    std::iota(blocks.begin(), blocks.end(), 0U);
    const double in_blocks = imbalance(rank_loads(loads, blocks, 8));
    EXPECT_LE(imbalance(rank_loads(loads, balanced_slots(loads, {.slots = 32, .ep = 8}), 8)),
              in_blocks + 1e-9)
        << seed;
    EXPECT_LE(imbalance(rank_loads(loads, balanced_slots(loads, {.slots = 40, .ep = 8}), 8)),
              in_blocks + 1e-9)
        << seed;
  }
}

TEST(BalancedSlots, ReplicateTheBusiestExperts) {
  const Loads loads = {10, 600, 10, 10, 300, 10, 10, 10};
  const auto slots = balanced_slots(loads, {.slots = 12, .ep = 4});
  EXPECT_EQ(std::ranges::count(slots, 1U), 4);
  EXPECT_EQ(std::ranges::count(slots, 4U), 2);
  EXPECT_LT(imbalance(rank_loads(loads, slots, 4)), 1.35);
}

TEST(BalancedSlots, ExchangeWhatGreedyPackingLeavesUneven) {
  // Largest first gives 3 + 2 + 2 against 3 + 2; the best is 6 each.
  const Loads loads = {3, 3, 2, 2, 2, 0};
  EXPECT_THAT(rank_loads(loads, balanced_slots(loads, {.slots = 6, .ep = 2}), 2),
              ElementsAre(6, 6));
}

TEST(BalancedSlots, KeepGroupsAndReplicasWithinNodes) {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    const Loads loads = random_loads(32, 0.8, seed);
    const BalanceShape shape{.slots = 48, .ep = 8, .nodes = 2, .groups = 8};
    ASSERT_TRUE(keeps_groups(shape));
    const auto slots = balanced_slots(loads, shape);
    std::set<std::uint32_t> groups;
    for (std::size_t slot = 0; slot < 24; ++slot) groups.insert(slots[slot] / 4);
    EXPECT_EQ(groups.size(), 4U);
    for (std::size_t slot = 24; slot < 48; ++slot) EXPECT_FALSE(groups.contains(slots[slot] / 4));
  }
  EXPECT_FALSE(keeps_groups({.slots = 48, .ep = 6, .nodes = 3, .groups = 8}));
}

TEST(BalancedSlots, AcceptLoadsOfNothing) {
  const Loads none(8, 0);
  const auto slots = balanced_slots(none, {.slots = 8, .ep = 4});
  EXPECT_EQ(std::set<std::uint32_t>(slots.begin(), slots.end()).size(), 8U);
  EXPECT_EQ(imbalance(rank_loads(none, slots, 4)), 1);
}

TEST(BalancedSlots, RefuseWhatRanksCannotShare) {
  const auto refuses = [](const BalanceShape& shape, const char* fact) {
    expect_error(ErrorCode::kInvalidArgument, {fact},
                 [&] { static_cast<void>(balanced_slots(Loads(8, 1), shape)); });
  };
  refuses({.slots = 7, .ep = 1}, "7 slots cannot hold 8 experts (choose --slots 8");
  refuses({.slots = 8, .ep = 3}, "3 ranks cannot share 8 slots evenly (choose --slots 9)");
  refuses({.slots = 8, .ep = 4, .nodes = 3}, "3 nodes cannot share 4 ranks");
  refuses({.slots = 8, .ep = 4, .groups = 3}, "3 groups");
  refuses({.slots = 8, .ep = 0}, "no experts, ranks");
}

}  // namespace
}  // namespace ingot::shard
