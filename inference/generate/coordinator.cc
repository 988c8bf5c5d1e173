// How ranks agree on the next step without one that commands.
//
// The problem: in a step the ranks meet in collectives, so all of them must take it, those without
// tokens as well (a dummy step), and all must end with the same step. Requests arrive while they
// compute, each must go to exactly one group of ranks, and a rank may be asked to stop.
//
// The choice: before every step all ranks exchange a report of a fixed size: tokens outstanding,
// counters of the last step, the wish to stop, and, from the first rank, how many requests have
// arrived. Each then computes the decision by itself. It is a function of those reports and of what
// was decided before, so it is the same everywhere: a request goes to the group with the fewest
// tokens outstanding, the first of equals. Only the first rank reads a clock for that, since others
// would see another number of requests; they set their clocks by its reports.
//
// Rejected: a rank that decides and tells the others (a second message before each step, and state
// that only that rank has); requests dealt out at the start (groups that end early would take dummy
// steps to the end).
//
// The cost: one small exchange per step. A rank that is late makes the others wait, as they would
// in the first collective of the step.

#include "inference/generate/coordinator.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <type_traits>

#include "formats/base/error.h"

namespace ingot::inference {
namespace {

constexpr Collective kWhatComesNext = {.group = Group::kWorld, .name = "what comes next"};
// A short sleep, so that a wish to stop is heard while no request arrives.
constexpr std::chrono::duration<double> kLongestSleep(0.1);

double seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

// The message of a rank to each other one.
struct Coordinator::Report {
  std::uint64_t stops = 0, arrived = 0, outstanding = 0;
  std::uint64_t elapsed = 0;  // nanoseconds since the start of the first rank, which says it
  StepCounts counts;
};

Coordinator::Coordinator(const RankView& rank, Comm& comm, std::span<const std::size_t> costs,
                         std::span<const double> arrivals)
    : view_(rank),
      comm_(comm),
      costs_(costs),
      arrivals_(arrivals),
      n_groups_(rank.topology.ranks_per_stage() / rank.topology.tp),
      sent_(total(comm.traffic())) {}

std::size_t Coordinator::group_of(std::uint32_t rank) const {
  return rank % view_.topology.ranks_per_stage() / view_.topology.tp;
}

std::optional<std::size_t> Coordinator::owner(std::size_t request) const {
  if (request >= owners_.size()) return std::nullopt;
  return owners_[request];
}

double Coordinator::now() const {
  return seconds(Clock::now() - start_);
}

std::uint64_t Coordinator::elapsed() const {
  const std::chrono::nanoseconds time = Clock::now() - start_;
  return static_cast<std::uint64_t>(time.count());
}

// The report of the shortest way is the nearest to the first rank's clock. A start that is no later
// than any report says lets no sequence have a token before it arrived.
void Coordinator::take_time(std::uint64_t elapsed) {
  const Clock::time_point start =
      Clock::now() - std::chrono::nanoseconds(static_cast<std::int64_t>(elapsed));
  start_ = has_met_ ? std::min(start_, start) : start;
  has_met_ = true;
}

std::size_t Coordinator::arrived() const {
  if (arrivals_.empty()) return costs_.size();
  return static_cast<std::size_t>(std::ranges::upper_bound(arrivals_, now()) - arrivals_.begin());
}

void Coordinator::await_arrival() const {
  if (owners_.size() >= arrivals_.size()) return;
  const auto left = std::chrono::duration<double>(arrivals_[owners_.size()] - now());
  if (left.count() > 0) std::this_thread::sleep_for(std::min(left, kLongestSleep));
}

std::vector<Coordinator::Report> Coordinator::all_reports(const Report& mine) {
  static_assert(std::is_trivially_copyable_v<Report>);
  const auto sent = std::as_bytes(std::span(&mine, 1));
  const std::vector<Bytes> received =
      exchange(comm_, kWhatComesNext,
               std::vector<Bytes>(comm_.size(Group::kWorld), Bytes(sent.begin(), sent.end())));
  std::vector<Report> reports(received.size());
  for (std::size_t r = 0; r < received.size(); ++r) {
    INGOT_CHECK(received[r].size() == sizeof(Report));
    std::memcpy(&reports[r], received[r].data(), sizeof(Report));
  }
  return reports;
}

// The ranks of a tensor group and of all stages count the same tokens of sequences; the first of
// them tells.
StepFigures Coordinator::figures_of(std::span<const Report> reports) const {
  StepFigures figures;
  figures.number = n_steps_;
  figures.waiting_seconds = waiting_seconds_;
  std::vector<std::uint64_t> by_expert_rank(view_.topology.ep);
  for (std::uint32_t rank = 0; rank < reports.size(); ++rank) {
    StepCounts counts = reports[rank].counts;
    const shard::RankPosition position = view_.topology.position(rank);
    by_expert_rank.at(position.ep_rank) += counts.expert_tokens;
    if (position.stage == 0 && position.tp_rank == 0) {
      if (counts.prompt_tokens + counts.answer_tokens + counts.recomputed_tokens == 0)
        counts.dummy = 1;
      add_counts<StepCounts>(figures, counts);
    } else {
      add_counts<RankCounts>(figures, counts);
    }
  }
  if (figures.expert_tokens > 0) {
    figures.imbalance = static_cast<double>(std::ranges::max(by_expert_rank)) *
                        static_cast<double>(by_expert_rank.size()) /
                        static_cast<double>(figures.expert_tokens);
  }
  return figures;
}

Coordinator::Decision Coordinator::meet(std::uint64_t outstanding, const StepCounts* counts,
                                        bool stops) {
  Decision decision;
  const Clock::time_point came = Clock::now();
  const Traffic until_now = total(comm_.traffic());
  if (is_idle_ && view_.rank == 0 && !stops) await_arrival();
  Report mine = {.stops = stops ? 1U : 0U,
                 .arrived = view_.rank == 0 ? arrived() : 0,
                 .outstanding = outstanding,
                 .elapsed = view_.rank == 0 ? elapsed() : 0,
                 .counts = counts != nullptr ? *counts : StepCounts{}};
  mine.counts.messages = until_now.n_messages - sent_.n_messages;
  mine.counts.bytes = until_now.n_bytes - sent_.n_bytes;
  const std::vector<Report> reports = all_reports(mine);
  if (view_.rank != 0) take_time(reports[0].elapsed);
  if (counts != nullptr) {
    sent_ = until_now;
    StepFigures& figures = decision.figures.emplace(figures_of(reports));
    figures.exchange_seconds = seconds(until_now.waited - before_step_.waited);
    figures.compute_seconds = seconds(came - met_at_) - figures.exchange_seconds;
    waiting_seconds_ = 0;
    ++n_steps_;
  }

  std::vector<std::uint64_t> loads(n_groups_);
  for (std::uint32_t rank = 0; rank < reports.size(); ++rank)
    loads[group_of(rank)] = reports[rank].outstanding;  // equal on all ranks of a group
  while (owners_.size() < reports[0].arrived) {
    const std::size_t request = owners_.size();
    const auto least = static_cast<std::size_t>(std::ranges::min_element(loads) - loads.begin());
    loads[least] += costs_[request];
    owners_.push_back(least);
    if (least == group()) decision.requests.push_back(request);
  }
  is_idle_ = std::ranges::all_of(loads, [](std::uint64_t load) { return load == 0; });
  if (std::ranges::any_of(reports, [](const Report& report) { return report.stops != 0; })) {
    decision.next = Next::kStopped;
  } else if (!is_idle_) {
    decision.next = Next::kStep;
  } else {
    decision.next = owners_.size() < costs_.size() ? Next::kWait : Next::kEnd;
  }
  before_step_ = total(comm_.traffic());
  met_at_ = Clock::now();
  waiting_seconds_ += seconds(met_at_ - came);
  return decision;
}

}  // namespace ingot::inference
