#include "shard/cut/topology.h"

#include <array>
#include <charconv>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "formats/base/error.h"

namespace ingot::shard {

std::uint32_t Topology::ranks_per_stage() const {
  return std::lcm(tp, ep * etp);
}

RankPosition Topology::position(std::uint32_t rank) const {
  INGOT_CHECK(rank < n_ranks());
  const std::uint32_t n_in_stage = ranks_per_stage();
  const std::uint32_t in_stage = rank % n_in_stage;
  return {.rank = rank,
          .stage = rank / n_in_stage,
          .tp_rank = in_stage % tp,
          .ep_rank = in_stage / etp % ep,
          .etp_rank = in_stage % etp};
}

Topology make_topology(std::uint32_t tp, std::uint32_t ep, std::optional<std::uint32_t> etp,
                       std::uint32_t pp) {
  const Topology topology = {.tp = tp, .ep = ep, .etp = etp.value_or(ep == 1 ? tp : 1), .pp = pp};
  const std::array<std::pair<const char*, std::uint32_t>, 4> numbers = {
      {{"--tp", tp}, {"--ep", ep}, {"--etp", topology.etp}, {"--pp", pp}}};
  for (const auto& [option, number] : numbers) {
    if (number == 0)
      throw Error(ErrorCode::kInvalidArgument, "{} is 0, it must be at least 1", option);
    // Products of numbers below this fit 64 bits.
    if (number > kMaxRanks) {
      throw Error(ErrorCode::kInvalidArgument, "{} is {}, there may be at most {} ranks", option,
                  number, kMaxRanks);
    }
  }
  const std::uint64_t expert_ranks = std::uint64_t{ep} * topology.etp;
  const std::uint64_t n_ranks = pp * std::lcm(std::uint64_t{tp}, expert_ranks);
  if (n_ranks > kMaxRanks) {
    throw Error(ErrorCode::kInvalidArgument,
                "--tp {} --ep {} --etp {} --pp {} needs {} ranks (pp x the least common multiple "
                "of tp and ep x etp), at most {} are possible",
                tp, ep, topology.etp, pp, n_ranks, kMaxRanks);
  }
  return topology;
}

std::string rank_directory_name(std::uint32_t rank, std::uint32_t n_ranks) {
  return fmt::format("rank-{:05}-of-{:05}", rank, n_ranks);
}

std::optional<RankNumber> parse_rank_name(std::string_view name,
                                          std::string (*spell)(std::uint32_t, std::uint32_t)) {
  constexpr std::string_view kDigits = "0123456789";
  RankNumber parsed;
  const char* const end = name.data() + name.size();
  const std::size_t rank = name.find_first_of(kDigits);
  const std::size_t after = name.find_first_not_of(kDigits, rank);
  const std::size_t total = name.find_first_of(kDigits, after);
  if (total == std::string_view::npos) return std::nullopt;
  std::from_chars(name.data() + rank, end, parsed.rank);
  std::from_chars(name.data() + total, end, parsed.n_ranks);
  if (parsed.rank >= parsed.n_ranks || spell(parsed.rank, parsed.n_ranks) != name)
    return std::nullopt;
  return parsed;
}

}  // namespace ingot::shard
