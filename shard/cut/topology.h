#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ingot::shard {

/// The position of a rank.
struct RankPosition {
  std::uint32_t rank = 0;      ///< number among all ranks
  std::uint32_t stage = 0;     ///< stage of the pipeline
  std::uint32_t tp_rank = 0;   ///< number of the slice of attention, dense layers, vocabulary
  std::uint32_t ep_rank = 0;   ///< number of the group of experts
  std::uint32_t etp_rank = 0;  ///< number of the slice of each expert
};

/// Tensor, expert and pipeline parallelism. Data parallelism replicates and has no number here: it
/// shows where tp is smaller than the ranks of a stage.
struct Topology {
  std::uint32_t tp = 1;   ///< ranks that cut attention, dense layers and the vocabulary
  std::uint32_t ep = 1;   ///< groups that share out the experts
  std::uint32_t etp = 1;  ///< ranks that cut each expert
  std::uint32_t pp = 1;   ///< pipeline stages

  /// lcm(tp, ep * etp).
  [[nodiscard]] std::uint32_t ranks_per_stage() const;
  [[nodiscard]] std::uint32_t n_ranks() const { return pp * ranks_per_stage(); }
  /// rank = stage * R + r; tp_rank = r mod tp, etp_rank = r mod etp, ep_rank = (r / etp) mod ep.
  [[nodiscard]] RankPosition position(std::uint32_t rank) const;
  [[nodiscard]] bool is_single() const { return n_ranks() == 1; }
  bool operator==(const Topology&) const = default;
};

/// Checks the numbers and fills in etp: tp when ep is 1, else 1. Throws kInvalidArgument for zeros
/// and for more than kMaxRanks ranks.
inline constexpr std::uint32_t kMaxRanks = 4096;
Topology make_topology(std::uint32_t tp, std::uint32_t ep, std::optional<std::uint32_t> etp,
                       std::uint32_t pp);

/// `rank-00003-of-00016`.
std::string rank_directory_name(std::uint32_t rank, std::uint32_t n_ranks);

/// A rank, and how many there are.
struct RankNumber {
  std::uint32_t rank = 0, n_ranks = 0;
};
/// The two numbers in a name that `spell` makes of them; nullopt for any other name.
std::optional<RankNumber> parse_rank_name(std::string_view name,
                                          std::string (*spell)(std::uint32_t, std::uint32_t));

}  // namespace ingot::shard
