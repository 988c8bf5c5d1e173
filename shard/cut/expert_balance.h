#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ingot::shard {

/// The ranks and slots for the experts of a layer.
struct BalanceShape {
  std::uint32_t slots = 0;   ///< slots of all ranks together, at least one per expert
  std::uint32_t ep = 1;      ///< ranks, all with the same number of slots
  std::uint32_t nodes = 1;   ///< nodes of the cluster; they have the same number of ranks
  std::uint32_t groups = 1;  ///< groups of experts, as the router has them
};

/// Throws kInvalidArgument, with the remedy, where ranks do not share the slots of so many experts
/// evenly, or nodes the ranks.
void require_even(const BalanceShape& shape, std::uint32_t n_experts);

/// True if groups of experts can stay within nodes, as a router that limits its choice to some
/// groups wants it.
bool keeps_groups(const BalanceShape& shape);

/// The logical expert of each physical slot of a layer, rank by rank, ascending within a rank.
/// `loads` are the tokens of each expert. Slots that are left go to the experts with the most
/// tokens a replica, which then have two or more; slots are packed so that the rank with the most
/// tokens has as few as can be found by exchanging pairs. Where keeps_groups(), groups are packed
/// into nodes first, and replicas stay in their node: DeepSeek's hierarchical balancing (EPLB). The
/// result depends only on the arguments.
std::vector<std::uint32_t> balanced_slots(std::span<const std::uint64_t> loads,
                                          const BalanceShape& shape);

/// Tokens of each rank, where the replicas of an expert share its tokens evenly.
std::vector<double> rank_loads(std::span<const std::uint64_t> loads,
                               std::span<const std::uint32_t> slots, std::uint32_t ep);
/// The largest over the mean; 1 where no rank has tokens.
double imbalance(std::span<const double> rank_loads);

}  // namespace ingot::shard
