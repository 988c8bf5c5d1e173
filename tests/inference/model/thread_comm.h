#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "inference/parallel/comm.h"

namespace ingot::testing {

using Bytes = std::vector<std::byte>;

/// Where the members of one group meet and hand each other bytes.
class MeetingPoint {
 public:
  explicit MeetingPoint(std::size_t n) : n_(n), posted_(n) {}

  /// What every member has sent to `me`. Members that come for different things fail.
  std::vector<Bytes> exchange(std::size_t me, const std::string& purpose, std::vector<Bytes> send) {
    std::unique_lock lock(mutex_);
    wait(lock, [&] { return n_leaving_ == 0; });
    if (n_here_ == 0) purpose_ = purpose;
    if (purpose_ != purpose) {
      throw std::runtime_error("one rank came for " + purpose + ", another for " + purpose_);
    }
    posted_[me] = std::move(send);
    if (++n_here_ == n_) {
      n_here_ = 0;
      n_leaving_ = n_;
      ++meetings_;
      changed_.notify_all();
    } else {
      const std::size_t before = meetings_;
      wait(lock, [&] { return meetings_ != before; });
    }
    std::vector<Bytes> received;
    for (const auto& from : posted_) received.push_back(from.at(me));
    if (--n_leaving_ == 0) changed_.notify_all();
    return received;
  }

  /// Nobody is to wait here any more.
  void abandon() {
    const std::lock_guard lock(mutex_);
    abandoned_ = true;
    changed_.notify_all();
  }

 private:
  template <typename Condition>
  void wait(std::unique_lock<std::mutex>& lock, const Condition& condition) {
    changed_.wait(lock, [&] { return abandoned_ || condition(); });
    if (abandoned_) throw std::runtime_error("another rank has failed");
  }

  std::size_t n_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<Bytes>> posted_;
  std::string purpose_;
  std::size_t n_here_ = 0, n_leaving_ = 0, meetings_ = 0;
  bool abandoned_ = false;
};

/// The collectives of one rank.
class ThreadComm final : public inference::Comm {
 public:
  struct Seat {
    MeetingPoint* at = nullptr;
    std::size_t rank = 0, size = 1;
  };
  ThreadComm(Seat tensor, Seat expert) : tensor_(tensor), expert_(expert) {}

  void all_reduce(inference::Group group, std::span<float> values) override {
    const std::vector<Bytes> all =
        to_all(group, "all_reduce of " + std::to_string(values.size()), std::as_bytes(values));
    std::ranges::fill(values, 0.0F);
    for (const Bytes& from : all) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        float value = 0;
        std::memcpy(&value, from.data() + i * sizeof value, sizeof value);
        values[i] += value;
      }
    }
  }

  std::vector<float> all_gather(inference::Group group, std::span<const float> mine) override {
    std::vector<float> joined;
    for (const Bytes& from : to_all(group, "all_gather", std::as_bytes(mine))) {
      const std::size_t at = joined.size();
      joined.resize(at + from.size() / sizeof(float));
      if (!from.empty()) std::memcpy(joined.data() + at, from.data(), from.size());
    }
    return joined;
  }

  std::vector<std::vector<std::byte>> all_to_all_v(
      inference::Group group, const std::vector<std::vector<std::byte>>& send) override {
    const Seat& seat = seat_of(group);
    if (send.size() != seat.size) throw std::runtime_error("not a message for every rank");
    return seat.at->exchange(seat.rank, "all_to_all_v", send);
  }

 private:
  [[nodiscard]] const Seat& seat_of(inference::Group group) const {
    return group == inference::Group::kTensor ? tensor_ : expert_;
  }
  std::vector<Bytes> to_all(inference::Group group, const std::string& purpose,
                            std::span<const std::byte> bytes) const {
    const Seat& seat = seat_of(group);
    return seat.at->exchange(seat.rank, purpose,
                             std::vector<Bytes>(seat.size, Bytes(bytes.begin(), bytes.end())));
  }

  Seat tensor_, expert_;
};

/// How many ranks there are and what they share: `dp` groups of `tp`, experts dealt over `ep` of
/// them.
struct WorldShape {
  std::size_t dp = 1, tp = 1, ep = 1;
  [[nodiscard]] std::size_t n_ranks() const { return dp * tp; }
  [[nodiscard]] inference::RankView view(std::size_t rank) const {
    return {.tp_rank = rank % tp, .tp_size = tp, .ep_rank = rank % ep, .ep_size = ep};
  }
  /// Which of the data-parallel groups.
  [[nodiscard]] std::size_t group(std::size_t rank) const { return rank / tp; }
};

/// Runs `body(rank, view, comm)` for every rank on a thread of its own. When one fails the others
/// are released, and its exception is thrown.
inline void run_ranks(
    const WorldShape& shape,
    const std::function<void(std::size_t, const inference::RankView&, inference::Comm&)>& body) {
  std::map<std::size_t, std::unique_ptr<MeetingPoint>> tensor, expert;
  for (std::size_t r = 0; r < shape.n_ranks(); ++r) {
    if (!tensor[r / shape.tp]) tensor[r / shape.tp] = std::make_unique<MeetingPoint>(shape.tp);
    if (!expert[r / shape.ep]) expert[r / shape.ep] = std::make_unique<MeetingPoint>(shape.ep);
  }
  std::mutex mutex;
  std::exception_ptr failure;
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < shape.n_ranks(); ++r) {
    threads.emplace_back([&, r] {
      const inference::RankView view = shape.view(r);
      ThreadComm comm({tensor.at(r / shape.tp).get(), view.tp_rank, view.tp_size},
                      {expert.at(r / shape.ep).get(), view.ep_rank, view.ep_size});
      try {
        body(r, view, comm);
      } catch (...) {
        {
          const std::lock_guard lock(mutex);
          if (!failure) failure = std::current_exception();
        }
        for (const auto* points : {&tensor, &expert}) {
          for (const auto& [index, point] : *points) point->abandon();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace ingot::testing
