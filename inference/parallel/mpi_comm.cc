#include "inference/parallel/mpi_comm.h"

#include <chrono>
#include <cstddef>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/hash.h"

namespace ingot::inference {
namespace {

// Looks of a rank before it sleeps between looks.
constexpr int kBusyLooks = 100;
constexpr std::chrono::microseconds kPause{50};

// Made of the collective's name and layer, so that ranks that have come for different things do not
// take each other's bytes.
std::uint32_t tag_of(const Collective& what) {
  const std::string text = fmt::format("{} {}", what.name, what.layer);
  return static_cast<std::uint32_t>(hash_bytes(std::as_bytes(std::span(text))).low % kMpiTags);
}

void require_sendable(std::uint64_t n_bytes, const Collective& what) {
  if (n_bytes <= kMostMpiBytes) return;
  throw Error(ErrorCode::kLimit,
              "'{}' has {} bytes for one rank, a message of MPI at most {} (give fewer or shorter "
              "prompts at once)",
              what.name, n_bytes, kMostMpiBytes);
}

}  // namespace

MpiComm::MpiComm(const MpiModule& module, const shard::Topology& topology, std::uint32_t rank,
                 MpiCommOptions options)
    : module_(module), options_(std::move(options)) {
  for (std::size_t group = 0; group < kGroups; ++group) {
    const GroupPlace place = group_place(topology, rank, static_cast<Group>(group));
    members_[group] = {.place = place,
                       .number = module_.split(static_cast<std::uint32_t>(place.index),
                                               static_cast<std::uint32_t>(place.rank)),
                       .sent = {}};
  }
}

void MpiComm::wait_until(const std::function<bool()>& is_so) const {
  for (int looks = 0; !is_so(); ++looks) {
    if (looks < kBusyLooks) {
      std::this_thread::yield();
      continue;
    }
    if (options_.stop_requested && options_.stop_requested())
      throw Error(ErrorCode::kInterrupted, "stopped while waiting for other ranks");
    std::this_thread::sleep_for(kPause);
  }
}

void MpiComm::begin_exchange(const Collective& what, std::vector<Bytes> send) {
  Member& member = at(what.group);
  for (const Bytes& bytes : send) require_sendable(bytes.size(), what);
  member.sent = std::move(send);
  for (std::size_t to = 0; to < member.sent.size(); ++to) {
    if (to == member.place.rank) continue;
    module_.start_send(member.number, static_cast<std::uint32_t>(to), tag_of(what),
                       member.sent[to].data(), member.sent[to].size());
  }
}

std::vector<Bytes> MpiComm::end_exchange(const Collective& what) {
  Member& member = at(what.group);
  const std::size_t n = member.sent.size(), own = member.place.rank;
  std::vector<Bytes> received(n);
  std::vector<bool> has_come(n);
  has_come[own] = true;
  std::size_t n_missing = n - 1;
  const auto look = [&](std::size_t from) {
    std::uint32_t tag = 0;
    std::uint64_t n_bytes = 0;
    const auto peer = static_cast<std::uint32_t>(from);
    if (!module_.probe(member.number, peer, &tag, &n_bytes)) return;
    if (tag != tag_of(what)) {
      throw Error(
          ErrorCode::kInternal,
          "ranks {} and {} of a {} group have come for different things, one of them for '{}'", own,
          from, group_name(what.group), what.name);
    }
    received[from].resize(n_bytes);
    module_.start_receive(member.number, peer, tag, received[from].data(), n_bytes);
    has_come[from] = true;
    --n_missing;
  };
  wait_until([&] {
    for (std::size_t from = 0; from < n; ++from) {
      if (!has_come[from]) look(from);
    }
    return n_missing == 0;
  });
  wait_until([&] { return module_.is_done(member.number); });
  received[own] = std::move(member.sent[own]);
  member.sent.clear();
  return received;
}

void MpiComm::all_reduce(const Collective& what, std::span<float> values) {
  const Member& member = at(what.group);
  if (!options_.own_sums || member.place.size == 1) {
    Comm::all_reduce(what, values);
    return;
  }
  require_sendable(values.size_bytes(), what);
  count(what);
  module_.start_sum(member.number, values.data(), values.size());
  wait_until([&] { return module_.is_done(member.number); });
}

}  // namespace ingot::inference
