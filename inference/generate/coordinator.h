#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "inference/parallel/comm.h"
#include "inference/parallel/rank_view.h"

namespace ingot::inference {

/// Counts of one step that every rank has of its own.
struct RankCounts {
  std::uint64_t expert_tokens = 0;      ///< tokens given to the experts of this rank
  std::uint64_t expert_bytes_read = 0;  ///< bytes of experts that this rank has read
  /// Messages to other ranks and their bytes, since the step before.
  std::uint64_t messages = 0, bytes = 0;
};

/// Counts of one step that all ranks of a group have alike: they hold the same tokens.
struct StepCounts : RankCounts {
  std::uint64_t prompt_tokens = 0;  ///< tokens of prompts, computed for the first time
  /// Tokens of answers, computed for the first time; proposals that do not hold left out.
  std::uint64_t answer_tokens = 0;
  std::uint64_t recomputed_tokens = 0;  ///< tokens computed again, after a preemption
  std::uint64_t preempted = 0;          ///< sequences that were preempted
  std::uint64_t sequences = 0;  ///< sequences that have tokens in the caches or in this step
  std::uint64_t waiting = 0;    ///< sequences that have arrived, but have no tokens there
  std::uint64_t cached_tokens = 0, cache_capacity = 0;
  std::uint64_t dummy = 0;  ///< groups that took the step without tokens
};

/// Adds counts to others of their kind, number by number.
template <typename Counts>
void add_counts(Counts& sums, const Counts& counts) {
  using Numbers = std::array<std::uint64_t, sizeof(Counts) / sizeof(std::uint64_t)>;
  auto numbers = std::bit_cast<Numbers>(sums);
  std::ranges::transform(numbers, std::bit_cast<Numbers>(counts), numbers.begin(), std::plus());
  sums = std::bit_cast<Counts>(numbers);
}

/// Figures of all ranks in a step. Times are those of this rank.
struct StepFigures : StepCounts {
  std::size_t number = 0;  ///< number of the step, from 0
  double imbalance = 1;    ///< most expert_tokens of an expert rank over the mean
  double compute_seconds = 0;
  double exchange_seconds = 0;  ///< time in collectives of the step
  double waiting_seconds = 0;  ///< time of waiting for other ranks and for requests before the step
};

/// Between two steps all ranks meet here: each tells the others its finished and remaining work, so
/// that all decide alike whether there is another step, and which group of ranks gets a request
/// that has arrived: the one with the fewest tokens outstanding, the first of equals.
class Coordinator {
 public:
  /// `costs[i]` tokens are outstanding of request i at its arrival. Requests arrive in their order,
  /// request i after `arrivals[i]` seconds by the clock of the first rank, the only one that reads
  /// it; empty: all at the start.
  Coordinator(const RankView& rank, Comm& comm, std::span<const std::size_t> costs,
              std::span<const double> arrivals);

  enum class Next : std::uint8_t { kStep, kWait, kEnd, kStopped };
  struct Decision {
    Next next = Next::kEnd;
    std::vector<std::size_t> requests;   ///< requests that this rank's group gets
    std::optional<StepFigures> figures;  ///< figures of the step before; nullopt: there was none
  };
  /// Decides what comes next; all ranks call it together. `outstanding`: tokens that the group has
  /// still to compute; `counts`: counts of the step since the last call, null where there was none.
  /// kWait: no group has work, but requests are still to arrive; come again. kStopped when a rank
  /// `stops`.
  Decision meet(std::uint64_t outstanding, const StepCounts* counts, bool stops);

  /// Data-parallel groups of a stage, and this rank's group among them.
  [[nodiscard]] std::size_t n_groups() const { return n_groups_; }
  [[nodiscard]] std::size_t group() const { return group_of(view_.rank); }
  /// Returns the group that has got a request; nullopt when none has.
  [[nodiscard]] std::optional<std::size_t> owner(std::size_t request) const;
  /// Seconds from the start of the first rank to now.
  [[nodiscard]] double now() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Report;

  [[nodiscard]] std::size_t group_of(std::uint32_t rank) const;
  [[nodiscard]] std::uint64_t elapsed() const;
  void take_time(std::uint64_t elapsed);
  [[nodiscard]] std::size_t arrived() const;
  void await_arrival() const;
  [[nodiscard]] std::vector<Report> all_reports(const Report& mine);
  [[nodiscard]] StepFigures figures_of(std::span<const Report> reports) const;

  const RankView& view_;
  Comm& comm_;
  std::span<const std::size_t> costs_;
  std::span<const double> arrivals_;
  std::size_t n_groups_;
  Clock::time_point start_ = Clock::now();  // of the first rank, as far as its reports tell
  bool has_met_ = false;                    // a report of the first rank has come
  std::vector<std::size_t> owners_;         // groups of the requests that have arrived
  bool is_idle_ = false;                    // no rank had work at the last meeting
  // Figures of the current step, and of those before.
  std::size_t n_steps_ = 0;
  Clock::time_point met_at_ = start_;  // the end of the last meeting
  double waiting_seconds_ = 0;
  Traffic sent_, before_step_;
};

}  // namespace ingot::inference
