#include "inference/parallel/thread_comm.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "inference/parallel/rank_view.h"

namespace ingot::inference {

namespace {

struct Letter {
  Collective what;
  Bytes bytes;
};

/// The letters between the members of one group. Sending never waits, so ranks need no barrier
/// between one exchange and the next.
class PostOffice {
 public:
  explicit PostOffice(std::size_t n) : n_(n), boxes_(n * n) {}

  void send(std::size_t from, const Collective& what, std::vector<Bytes> letters) {
    const std::lock_guard lock(mutex_);
    for (std::size_t to = 0; to < n_; ++to)
      boxes_[from * n_ + to].push_back({.what = what, .bytes = std::move(letters[to])});
    changed_.notify_all();
  }

  std::vector<Bytes> receive(std::size_t me, const Collective& what) {
    std::vector<Bytes> received;
    std::unique_lock lock(mutex_);
    for (std::size_t from = 0; from < n_; ++from) {
      std::deque<Letter>& box = boxes_[from * n_ + me];
      changed_.wait(lock, [&] { return is_abandoned_ || !box.empty(); });
      if (is_abandoned_) throw Error(ErrorCode::kInterrupted, "another rank has failed");
      if (box.front().what != what) {
        throw Error(ErrorCode::kInternal,
                    "ranks {} and {} of a group of {} have come for '{}' and '{}'", me, from, n_,
                    what.name, box.front().what.name);
      }
      received.push_back(std::move(box.front().bytes));
      box.pop_front();
    }
    return received;
  }

  /// No rank waits here any more.
  void abandon() {
    const std::lock_guard lock(mutex_);
    is_abandoned_ = true;
    changed_.notify_all();
  }

 private:
  std::size_t n_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::deque<Letter>> boxes_;  // [from, to]
  bool is_abandoned_ = false;
};

/// The groups of all ranks.
class ThreadWorld {
 public:
  explicit ThreadWorld(const shard::Topology& topology) : topology_(topology) {
    for (std::uint32_t rank = 0; rank < topology.n_ranks(); ++rank) {
      for (std::size_t group = 0; group < kGroups; ++group) {
        const GroupPlace place = group_place(topology, rank, static_cast<Group>(group));
        auto& office = offices_[{group, place.index}];
        if (!office) office = std::make_unique<PostOffice>(place.size);
      }
    }
  }

  [[nodiscard]] GroupPlace place(std::uint32_t rank, Group group) const {
    return group_place(topology_, rank, group);
  }
  PostOffice& office(std::uint32_t rank, Group group) {
    return *offices_.at({static_cast<std::size_t>(group), place(rank, group).index});
  }
  void abandon() {
    for (const auto& [key, office] : offices_) office->abandon();
  }

 private:
  shard::Topology topology_;
  std::map<std::pair<std::size_t, std::size_t>, std::unique_ptr<PostOffice>> offices_;
};

class ThreadComm final : public Comm {
 public:
  ThreadComm(ThreadWorld& world, std::uint32_t rank) : world_(world), rank_(rank) {}

  [[nodiscard]] std::size_t rank(Group group) const override {
    return world_.place(rank_, group).rank;
  }
  [[nodiscard]] std::size_t size(Group group) const override {
    return world_.place(rank_, group).size;
  }

 private:
  void begin_exchange(const Collective& what, std::vector<Bytes> send) override {
    world_.office(rank_, what.group).send(rank(what.group), what, std::move(send));
  }
  std::vector<Bytes> end_exchange(const Collective& what) override {
    return world_.office(rank_, what.group).receive(rank(what.group), what);
  }

  ThreadWorld& world_;
  std::uint32_t rank_;
};

// True if a rank has only heard of another one's failure.
bool is_released(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    return error.code() == ErrorCode::kInterrupted;
  } catch (...) {
    return false;
  }
}

}  // namespace

void run_ranks(const shard::Topology& topology,
               const std::function<void(std::uint32_t rank, Comm& comm)>& body) {
  ThreadWorld world(topology);
  std::vector<std::exception_ptr> failures(topology.n_ranks());
  run_workers(failures.size(), [&](std::size_t worker) {
    const auto rank = static_cast<std::uint32_t>(worker);
    try {
      ThreadComm comm(world, rank);
      body(rank, comm);
    } catch (...) {
      failures[worker] = std::current_exception();
      world.abandon();
    }
  });
  std::exception_ptr first;
  for (const std::exception_ptr& failure : failures) {
    if (failure && (!first || (is_released(first) && !is_released(failure)))) first = failure;
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace ingot::inference
