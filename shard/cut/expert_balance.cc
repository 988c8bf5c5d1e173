#include "shard/cut/expert_balance.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "formats/base/error.h"

namespace ingot::shard {

namespace {

using Numbers = std::vector<std::uint32_t>;

/// Numbers of the values, largest first; equal ones in their order.
Numbers by_size(std::span<const double> values) {
  Numbers order(values.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::stable_sort(order, std::greater<>(), [&](std::uint32_t i) { return values[i]; });
  return order;
}

/// Items into packs of the same number, largest first, each into the pack with the least weight
/// that has room. A pack that `avoids` an item gets it only where no other has room.
std::vector<Numbers> packed(std::span<const double> weights, std::uint32_t n_packs,
                            const std::function<bool(const Numbers&, std::uint32_t)>& avoids) {
  const std::size_t room = weights.size() / n_packs;
  std::vector<Numbers> packs(n_packs);
  std::vector<double> sums(n_packs, 0);
  for (const std::uint32_t item : by_size(weights)) {
    std::optional<std::uint32_t> best;
    bool is_best_avoided = true;
    for (std::uint32_t pack = 0; pack < n_packs; ++pack) {
      if (packs[pack].size() == room) continue;
      const bool is_avoided = avoids && avoids(packs[pack], item);
      const bool is_better =
          !best || (is_avoided != is_best_avoided ? is_best_avoided : sums[pack] < sums[*best]);
      if (!is_better) continue;
      best = pack;
      is_best_avoided = is_avoided;
    }
    packs[*best].push_back(item);
    sums[*best] += weights[item];
  }
  return packs;
}

/// Physical slots of one node, on its ranks.
struct Placement {
  std::vector<Numbers> ranks;  ///< experts of each rank's slots
  double most = 0;             ///< tokens of the rank that has the most
};

double sum_of(const Numbers& experts, std::span<const double> share) {
  double sum = 0;
  for (const std::uint32_t expert : experts) sum += share[expert];
  return sum;
}

/// Exchanges slots of the fullest rank with those of others, as long as that helps.
void improve(std::span<const double> share, Placement& placement) {
  std::vector<double> sums;
  std::size_t n_slots = 0;
  for (const Numbers& rank : placement.ranks) {
    sums.push_back(sum_of(rank, share));
    n_slots += rank.size();
  }
  const auto has = [&](std::size_t rank, std::uint32_t expert) {
    return std::ranges::find(placement.ranks[rank], expert) != placement.ranks[rank].end();
  };
  // Each exchange lowers the most tokens of two ranks; the limit is there for rounding.
  for (std::size_t round = 0; round < 4 * n_slots; ++round) {
    const auto full = static_cast<std::size_t>(std::ranges::max_element(sums) - sums.begin());
    struct Exchange {
      std::size_t rank, mine, theirs;
    };
    std::optional<Exchange> best;
    double best_sum = sums[full] * (1 - 1e-12);
    for (std::size_t rank = 0; rank < sums.size(); ++rank) {
      if (rank == full) continue;
      for (std::size_t mine = 0; mine < placement.ranks[full].size(); ++mine) {
        for (std::size_t theirs = 0; theirs < placement.ranks[rank].size(); ++theirs) {
          const std::uint32_t a = placement.ranks[full][mine];
          const std::uint32_t b = placement.ranks[rank][theirs];
          const double moved = share[a] - share[b];
          const double sum = std::max(sums[full] - moved, sums[rank] + moved);
          if (moved <= 0 || sum >= best_sum || has(rank, a) || has(full, b)) continue;
          best_sum = sum;
          best = {.rank = rank, .mine = mine, .theirs = theirs};
        }
      }
    }
    if (!best) break;
    std::swap(placement.ranks[full][best->mine], placement.ranks[best->rank][best->theirs]);
    for (const std::size_t rank : {full, best->rank})
      sums[rank] = sum_of(placement.ranks[rank], share);
  }
  placement.most = *std::ranges::max_element(sums);
}

/// The experts of a node on its ranks. `experts` are the node's, `loads` those of all experts.
Placement placed(const Numbers& experts, std::span<const std::uint64_t> loads, std::uint32_t slots,
                 std::uint32_t ranks) {
  std::vector<double> share(loads.size(), 0);
  std::vector<std::uint32_t> replicas(loads.size(), 1);
  for (const std::uint32_t expert : experts) share[expert] = static_cast<double>(loads[expert]);
  Numbers physical = experts;
  while (physical.size() < slots) {
    const std::uint32_t busiest = *std::ranges::max_element(
        experts, std::less<>(), [&](std::uint32_t e) { return share[e]; });
    ++replicas[busiest];
    share[busiest] = static_cast<double>(loads[busiest]) / replicas[busiest];
    physical.push_back(busiest);
  }

  std::vector<double> weights;
  for (const std::uint32_t expert : physical) weights.push_back(share[expert]);
  const auto is_there = [&](const Numbers& pack, std::uint32_t item) {
    return std::ranges::any_of(
        pack, [&](std::uint32_t other) { return physical[other] == physical[item]; });
  };
  const auto of_packs = [&](const std::vector<Numbers>& packs) {
    Placement placement;
    for (const Numbers& pack : packs) {
      Numbers& rank = placement.ranks.emplace_back();
      for (const std::uint32_t item : pack) rank.push_back(physical[item]);
    }
    improve(share, placement);
    return placement;
  };
  // A rank with two replicas of an expert has its tokens as one with one: neither way of packing is
  // always the better one, nor is the order of the experts always worse.
  Placement best = of_packs(packed(weights, ranks, is_there));
  std::vector<std::vector<Numbers>> others = {packed(weights, ranks, {})};
  if (physical.size() == experts.size()) {
    std::vector<Numbers>& in_order = others.emplace_back(ranks);
    for (std::uint32_t item = 0; item < physical.size(); ++item)
      in_order[item / (physical.size() / ranks)].push_back(item);
  }
  for (const std::vector<Numbers>& packs : others) {
    Placement other = of_packs(packs);
    if (other.most < best.most) best = std::move(other);
  }
  return best;
}

/// The experts of each node: whole groups, packed by their tokens.
std::vector<Numbers> experts_of_nodes(std::span<const std::uint64_t> loads,
                                      const BalanceShape& shape) {
  const std::uint32_t groups = keeps_groups(shape) ? shape.groups : 1;
  const auto per_group = static_cast<std::uint32_t>(loads.size()) / groups;
  std::vector<double> sums(groups, 0);
  for (std::uint32_t e = 0; e < loads.size(); ++e)
    sums[e / per_group] += static_cast<double>(loads[e]);
  std::vector<Numbers> nodes;
  for (const Numbers& pack : packed(sums, keeps_groups(shape) ? shape.nodes : 1, {})) {
    Numbers& experts = nodes.emplace_back();
    for (const std::uint32_t group : pack) {
      for (std::uint32_t i = 0; i < per_group; ++i) experts.push_back(group * per_group + i);
    }
    std::ranges::sort(experts);
  }
  return nodes;
}

}  // namespace

bool keeps_groups(const BalanceShape& shape) {
  return shape.nodes > 1 && shape.groups % shape.nodes == 0;
}

void require_even(const BalanceShape& shape, std::uint32_t n_experts) {
  const auto refuse = [](std::string fact) {
    throw Error(ErrorCode::kInvalidArgument, std::move(fact));
  };
  if (shape.ep == 0 || shape.nodes == 0 || shape.groups == 0 || n_experts == 0)
    refuse("there are no experts, ranks, nodes or groups to balance");
  if (shape.ep > n_experts * std::uint64_t{n_experts})
    refuse(fmt::format("{} ranks are more than {} experts can use", shape.ep, n_experts));
  if (shape.slots < n_experts) {
    refuse(fmt::format("{} slots cannot hold {} experts (choose --slots {} or more)", shape.slots,
                       n_experts, n_experts));
  }
  if (shape.slots % shape.ep != 0) {
    const std::uint64_t next = (std::uint64_t{shape.slots} / shape.ep + 1) * shape.ep;
    refuse(fmt::format("{} ranks cannot share {} slots evenly (choose --slots {})", shape.ep,
                       shape.slots, next));
  }
  if (shape.ep % shape.nodes != 0) {
    refuse(fmt::format("{} nodes cannot share {} ranks evenly (choose a divisor of {} for --nodes)",
                       shape.nodes, shape.ep, shape.ep));
  }
  if (n_experts % shape.groups != 0)
    refuse(fmt::format("{} experts are not in {} groups of one size", n_experts, shape.groups));
}

std::vector<std::uint32_t> balanced_slots(std::span<const std::uint64_t> loads,
                                          const BalanceShape& shape) {
  require_even(shape, static_cast<std::uint32_t>(loads.size()));
  const std::vector<Numbers> nodes = experts_of_nodes(loads, shape);
  const auto n_nodes = static_cast<std::uint32_t>(nodes.size());
  Numbers slots;
  slots.reserve(shape.slots);
  for (const Numbers& experts : nodes) {
    Placement node = placed(experts, loads, shape.slots / n_nodes, shape.ep / n_nodes);
    for (Numbers& rank : node.ranks) {
      std::ranges::sort(rank);
      slots.insert(slots.end(), rank.begin(), rank.end());
    }
  }
  return slots;
}

std::vector<double> rank_loads(std::span<const std::uint64_t> loads,
                               std::span<const std::uint32_t> slots, std::uint32_t ep) {
  INGOT_CHECK(ep > 0 && slots.size() % ep == 0);
  std::vector<std::uint32_t> replicas(loads.size(), 0);
  for (const std::uint32_t expert : slots) ++replicas.at(expert);
  std::vector<double> sums(ep, 0);
  for (std::size_t slot = 0; slot < slots.size(); ++slot) {
    const std::uint32_t expert = slots[slot];
    sums[slot / (slots.size() / ep)] += static_cast<double>(loads[expert]) / replicas[expert];
  }
  return sums;
}

double imbalance(std::span<const double> rank_loads) {
  const double sum = std::accumulate(rank_loads.begin(), rank_loads.end(), 0.0);
  if (rank_loads.empty() || sum <= 0) return 1;
  return *std::ranges::max_element(rank_loads) * static_cast<double>(rank_loads.size()) / sum;
}

}  // namespace ingot::shard
