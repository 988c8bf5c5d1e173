#include "inference/parallel/comm.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "formats/base/error.h"

namespace ingot::inference {

namespace {

std::size_t index_of(Group group) {
  return static_cast<std::size_t>(group);
}

}  // namespace

std::string_view group_name(Group group) {
  constexpr std::array<std::string_view, kGroups> kNames = {"tensor", "expert", "pipeline",
                                                            "world"};
  return kNames[index_of(group)];
}

Traffic total(const TrafficByCollective& traffic) {
  Traffic all;
  for (const auto& [what, of] : traffic) {
    all.n_meetings += of.n_meetings;
    all.n_messages += of.n_messages;
    all.n_bytes += of.n_bytes;
    all.hidden += of.hidden;
    all.waited += of.waited;
  }
  return all;
}

Bytes bytes_of(std::span<const float> values) {
  const auto bytes = std::as_bytes(values);
  return {bytes.begin(), bytes.end()};
}

void copy_values(std::span<const std::byte> from, std::span<float> to) {
  INGOT_CHECK(from.size() == to.size_bytes());
  if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
}

Traffic& Comm::count(const Collective& what) {
  Traffic& traffic = traffic_[what];
  ++traffic.n_meetings;
  return traffic;
}

void Comm::start(const Collective& what, std::vector<Bytes> send) {
  INGOT_CHECK(send.size() == size(what.group) && !under_way_[index_of(what.group)].is);
  Traffic& traffic = count(what);
  for (std::size_t r = 0; r < send.size(); ++r) {
    if (r == rank(what.group) || send[r].empty()) continue;
    ++traffic.n_messages;
    traffic.n_bytes += send[r].size();
  }
  begin_exchange(what, std::move(send));
  under_way_[index_of(what.group)] = {.is = true, .since = Clock::now()};
}

std::vector<Bytes> Comm::finish(const Collective& what) {
  UnderWay& under_way = under_way_[index_of(what.group)];
  INGOT_CHECK(under_way.is);
  under_way.is = false;
  const auto before = Clock::now();
  std::vector<Bytes> received = end_exchange(what);
  Traffic& traffic = traffic_[what];
  traffic.hidden += before - under_way.since;
  traffic.waited += Clock::now() - before;
  return received;
}

void Comm::all_reduce(const Collective& what, std::span<float> values) {
  const std::size_t n = size(what.group);
  if (n == 1) return;
  const std::vector<Bytes> all = exchange(*this, what, std::vector<Bytes>(n, bytes_of(values)));
  copy_values(all[0], values);
  std::vector<float> more(values.size());
  for (std::size_t r = 1; r < n; ++r) {
    copy_values(all[r], more);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += more[i];
  }
}

void OneRank::begin_exchange(const Collective& what, std::vector<Bytes> send) {
  kept_[index_of(what.group)] = std::move(send);
}

std::vector<Bytes> OneRank::end_exchange(const Collective& what) {
  return std::exchange(kept_[index_of(what.group)], {});
}

std::vector<Bytes> exchange(Comm& comm, const Collective& what, std::vector<Bytes> send) {
  comm.start(what, std::move(send));
  return comm.finish(what);
}

std::vector<float> all_gather(Comm& comm, const Collective& what, std::span<const float> mine) {
  const std::size_t n = comm.size(what.group);
  if (n == 1) return {mine.begin(), mine.end()};
  const std::vector<Bytes> all = exchange(comm, what, std::vector<Bytes>(n, bytes_of(mine)));
  std::vector<float> joined;
  for (const Bytes& from : all) {
    const std::size_t at = joined.size();
    joined.resize(at + from.size() / sizeof(float));
    copy_values(from, std::span(joined).subspan(at));
  }
  return joined;
}

Bytes broadcast(Comm& comm, const Collective& what, std::size_t from, Bytes bytes) {
  const std::size_t n = comm.size(what.group);
  if (n == 1) return bytes;
  std::vector<Bytes> send(n);
  if (comm.rank(what.group) == from) std::ranges::fill(send, bytes);
  return std::move(exchange(comm, what, std::move(send))[from]);
}

// Each list with its length in front.
Lists broadcast(Comm& comm, const Collective& what, std::size_t from, const Lists& lists) {
  std::vector<std::int32_t> numbers;
  for (const auto& list : lists) {
    numbers.push_back(static_cast<std::int32_t>(list.size()));
    numbers.insert(numbers.end(), list.begin(), list.end());
  }
  const auto given = std::as_bytes(std::span(numbers));
  const Bytes bytes = broadcast(comm, what, from, Bytes(given.begin(), given.end()));
  numbers.resize(bytes.size() / sizeof(std::int32_t));
  if (!bytes.empty()) std::memcpy(numbers.data(), bytes.data(), bytes.size());
  Lists received;
  for (std::span<const std::int32_t> left = numbers; !left.empty();) {
    const auto n = static_cast<std::size_t>(left.front());
    INGOT_CHECK(n < left.size());
    received.emplace_back(left.begin() + 1, left.begin() + 1 + static_cast<std::ptrdiff_t>(n));
    left = left.subspan(1 + n);
  }
  return received;
}

void broadcast(Comm& comm, const Collective& what, std::size_t from, std::span<float> values) {
  const std::size_t n = comm.size(what.group);
  if (n == 1) return;
  const bool gives = comm.rank(what.group) == from;
  const std::vector<Bytes> received =
      exchange(comm, what, std::vector<Bytes>(n, gives ? bytes_of(values) : Bytes()));
  copy_values(received[from], values);
}

Bytes hand_over(Comm& comm, const Collective& what, std::size_t from, Bytes bytes) {
  std::vector<Bytes> send(comm.size(what.group));
  INGOT_CHECK(from + 1 < send.size());
  if (comm.rank(what.group) == from) send[from + 1] = std::move(bytes);
  std::vector<Bytes> received = exchange(comm, what, std::move(send));
  return std::move(received[from]);
}

}  // namespace ingot::inference
