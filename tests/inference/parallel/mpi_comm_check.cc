#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "inference/parallel/mpi_comm.h"
#include "inference/parallel/thread_comm.h"

// mpirun -n R mpi_comm_check TP EP ETP PP: whether ranks that are processes get from each
// collective the same as ranks that are threads, and count the same. The first rank prints
// differences; exit code 0 without any.
// mpirun -n 2 mpi_comm_check mismatch: two ranks meet in different collectives; exit code 7 where
// one of them notices.

namespace ingot::inference {
namespace {

constexpr int kNoticed = 7;
constexpr std::uint32_t kSteps = 60;

// The bytes that a rank sends in a step, to a rank of the group: none, few, or more than any
// transport copies before it is asked for.
Bytes letter(std::uint32_t step, std::uint32_t from, std::size_t to) {
  std::mt19937 random(step * 7919 + from * 104729 + static_cast<std::uint32_t>(to));
  constexpr std::size_t kMost[] = {0, 1, 60, 300'000};
  Bytes bytes(random() % (kMost[random() % std::size(kMost)] + 1));
  std::uint64_t state = random();
  for (std::byte& byte : bytes) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    byte = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

std::vector<float> values_of(std::uint32_t step, std::uint32_t rank, std::size_t n) {
  std::mt19937 random(step * 31 + rank);
  std::uniform_real_distribution<float> number(-1, 1);
  std::vector<float> values(n);
  for (float& value : values) value = number(random);
  return values;
}

// Everything that the rank received, in its order.
class Script {
 public:
  Script(Comm& comm, std::uint32_t rank) : comm_(comm), rank_(rank) {}

  std::vector<Bytes> run() {
    for (step_ = 0; step_ < kSteps; ++step_) {
      // The same on all ranks.
      std::mt19937 random(step_);
      const auto group = static_cast<Group>(random() % kGroups);
      const std::size_t n = random() % 3000;
      one_of_each({.group = group, .name = "step", .layer = step_}, random() % 6, n);
    }
    return std::move(received_);
  }

 private:
  void one_of_each(const Collective& what, std::size_t kind, std::size_t n) {
    const std::size_t size = comm_.size(what.group), from = step_ % size;
    std::vector<float> values = values_of(step_, rank_, n);
    switch (kind) {
      case 0:
        comm_.all_reduce(what, values);
        return add(bytes_of(values));
      case 1:
        values.resize(values.size() / (comm_.rank(what.group) + 1));
        return add(bytes_of(all_gather(comm_, what, values)));
      case 2:
        broadcast(comm_, what, from, values);
        return add(bytes_of(values));
      case 3:
        if (size > 1) add(hand_over(comm_, what, step_ % (size - 1), letter(step_, rank_, 0)));
        return;
      case 4:
        for (Bytes& bytes : exchange(comm_, what, letters(what))) add(std::move(bytes));
        return;
      default:
        return overlap(n);
    }
  }

  // Other groups meet while the experts' exchange is under way.
  void overlap(std::size_t n) {
    const Collective slow = {.group = Group::kExpert, .name = "slow", .layer = step_};
    comm_.start(slow, letters(slow));
    std::vector<float> values = values_of(step_, rank_, n);
    comm_.all_reduce({.group = Group::kTensor, .name = "meanwhile", .layer = step_}, values);
    add(bytes_of(values));
    for (Bytes& bytes : comm_.finish(slow)) add(std::move(bytes));
  }

  [[nodiscard]] std::vector<Bytes> letters(const Collective& what) const {
    std::vector<Bytes> send;
    for (std::size_t to = 0; to < comm_.size(what.group); ++to)
      send.push_back(letter(step_, rank_, to));
    return send;
  }
  void add(Bytes bytes) { received_.push_back(std::move(bytes)); }

  Comm& comm_;
  std::uint32_t rank_, step_ = 0;
  std::vector<Bytes> received_;
};

bool same_counts(const TrafficByCollective& a, const TrafficByCollective& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) {
    return x.first == y.first && x.second.n_meetings == y.second.n_meetings &&
           x.second.n_messages == y.second.n_messages && x.second.n_bytes == y.second.n_bytes;
  });
}

// How MPI's own sums differ from those in rank order, at most.
float own_sums_differ_by(Comm& own, Comm& ordered, std::uint32_t rank) {
  const Collective what = {.group = Group::kWorld, .name = "sums"};
  std::vector<float> a = values_of(1, rank, 1000), b = a;
  own.all_reduce(what, a);
  ordered.all_reduce(what, b);
  float most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

int compare(const MpiModule& module, const shard::Topology& topology, std::uint32_t rank) {
  MpiComm comm(module, topology, rank), own(module, topology, rank, {.own_sums = true});
  const std::vector<Bytes> is = Script(comm, rank).run();
  std::vector<Bytes> wanted;
  bool counts_are_same = false;
  run_ranks(topology, [&](std::uint32_t r, Comm& threads) {
    std::vector<Bytes> all = Script(threads, r).run();
    if (r != rank) return;
    wanted = std::move(all);
    counts_are_same = same_counts(comm.traffic(), threads.traffic());
  });
  int code = EXIT_SUCCESS;
  const auto demand = [&](bool holds, std::string_view claim) {
    if (holds) return;
    fmt::print(stderr, "rank {}: {}\n", rank, claim);
    code = EXIT_FAILURE;
  };
  demand(is == wanted, "bytes differ from those of threads");
  demand(counts_are_same, "counts differ from those of threads");
  demand(own_sums_differ_by(own, comm, rank) < 1e-5F, "MPI's own sums are none");
  return code;
}

// Never returns.
void come_for_different_things(const MpiModule& module, std::uint32_t rank) {
  MpiComm comm(module, {.tp = 2}, rank);
  try {
    const Collective what = {.group = Group::kTensor, .name = rank == 0 ? "sum" : "other"};
    exchange(comm, what, std::vector<Bytes>(2));
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    module.abort(error.code() == ErrorCode::kInternal ? kNoticed : EXIT_FAILURE);
  }
}

int run(const std::vector<std::string_view>& words) {
  const MpiModule& module = *ingot_mpi_module();
  std::uint32_t rank = 0, n_ranks = 0;
  if (!module.start(&rank, &n_ranks)) return EXIT_FAILURE;
  if (words.size() == 2 && words[1] == "mismatch") come_for_different_things(module, rank);
  if (words.size() != 5) return EXIT_FAILURE;
  const auto number = [&](std::size_t at) {
    return static_cast<std::uint32_t>(std::strtoul(words[at].data(), nullptr, 10));
  };
  const shard::Topology topology = {
      .tp = number(1), .ep = number(2), .etp = number(3), .pp = number(4)};
  if (topology.n_ranks() != n_ranks) return EXIT_FAILURE;
  const int code = compare(module, topology, rank);
  module.end();
  return code;
}

}  // namespace
}  // namespace ingot::inference

int main(int argc, char** argv) {
  return ingot::inference::run({argv, argv + argc});
}
