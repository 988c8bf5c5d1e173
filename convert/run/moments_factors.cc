#include "convert/run/moments_factors.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "convert/plan/passes.h"
#include "formats/base/error.h"

namespace ingot::convert {

namespace {

using Moments = std::vector<const formats::StatisticTensor*>;

std::uint64_t size_of(const formats::StatisticTensor& moments) {
  return moments.shape.back();
}

// The moments that all matrices of a tensor have together; null: experts have their own.
const formats::StatisticTensor* joint(const Moments& moments) {
  const bool are_one = std::ranges::all_of(
      moments, [&](const formats::StatisticTensor* other) { return other == moments.front(); });
  return are_one ? moments.front() : nullptr;
}

}  // namespace

FactorMemory factor_memory(const Plan& plan, std::uint64_t threads) {
  std::map<const formats::StatisticTensor*, std::uint64_t> left;
  struct Use {
    const formats::StatisticTensor* moments;  // null: the room in which a stack has its own
    std::uint64_t size;
  };
  std::vector<Use> order;
  std::set<const formats::StatisticTensor*> made;
  for (const PlannedTensor& planned : plan.tensors) {
    if (!planned.carries_errors || !plan.is_here(planned)) continue;
    const Moments moments = moments_of(plan, planned);
    order.push_back({.moments = joint(moments), .size = plan.tensor_of(planned).shape.back()});
    if (order.back().moments != nullptr) ++left[order.back().moments];
    made.insert(moments.begin(), moments.end());
  }
  made.erase(nullptr);
  FactorMemory memory{.n_factors = made.size()};
  made.clear();
  std::uint64_t live = 0, most = 0, largest = 0;
  for (const auto& [moments, size] : order) {
    const std::uint64_t n_bytes = quantize::MomentsFactor::bytes(size);
    const std::uint64_t n_to_make = quantize::MomentsFactor::bytes_to_make(size);
    memory.least = std::max(memory.least, n_to_make);
    if (moments == nullptr) {
      most = std::max(most, live + n_to_make);
      largest = std::max(largest, n_to_make);
      continue;
    }
    if (made.insert(moments).second) {
      most = std::max(most, live + n_to_make);
      live += n_bytes;
    }
    if (--left[moments] > 0) continue;
    live -= n_bytes;
    largest = std::max(largest, n_bytes);
  }
  // Other threads are at tensors before or behind.
  memory.useful = std::max(memory.least, most + (threads - 1) * largest);
  return memory;
}

MomentsFactors::MomentsFactors(const Plan& plan, std::uint64_t most_bytes, std::size_t threads,
                               const std::vector<char>& done)
    : plan_(plan), most_bytes_(most_bytes), threads_(threads) {
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    const PlannedTensor& planned = plan.tensors[i];
    if (!planned.carries_errors || !plan.is_here(planned) || done[i] != 0) continue;
    const formats::StatisticTensor* moments = joint(moments_of(plan, planned));
    if (moments == nullptr) continue;
    Entry& entry = entries_[moments];
    entry.moments = moments;
    ++entry.n_left;
  }
}

const quantize::MomentsFactor* MomentsFactors::Lease::factor(std::uint64_t matrix) {
  if (entry_ == nullptr) return nullptr;
  if (moments_.empty()) return entry_->factor ? &*entry_->factor : nullptr;
  if (!own_ || own_->first != matrix) {
    own_.reset();  // frees the room first
    const formats::StatisticTensor* const moments = moments_.at(matrix);
    own_.emplace(matrix, moments == nullptr ? std::nullopt : of_->made(*moments));
  }
  return own_->second ? &*own_->second : nullptr;
}

MomentsFactors::Lease MomentsFactors::lease(const PlannedTensor& planned) {
  Moments moments = moments_of(plan_, planned);
  const formats::StatisticTensor* const together = joint(moments);
  std::unique_lock lock(mutex_);
  if (together == nullptr) {
    const std::uint64_t n_bytes =
        quantize::MomentsFactor::bytes_to_make(plan_.tensor_of(planned).shape.back());
    while (!make_room(n_bytes)) changed_.wait(lock);
    Entry& room = rooms_[&planned];
    room = {.n_bytes = n_bytes, .n_leases = 1, .n_left = 1};
    n_bytes_ += n_bytes;
    return Lease(*this, room, std::move(moments));
  }
  Entry& entry = entries_.at(together);
  while (!entry.is_made) {
    if (entry.is_making ||
        !make_room(quantize::MomentsFactor::bytes_to_make(size_of(*entry.moments)))) {
      changed_.wait(lock);
      continue;
    }
    entry.is_making = true;
    n_bytes_ += entry.n_bytes = quantize::MomentsFactor::bytes_to_make(size_of(*entry.moments));
    lock.unlock();
    std::exception_ptr failure;
    try {
      entry.factor = made(*entry.moments);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    entry.is_making = false;
    n_bytes_ -= entry.n_bytes;
    entry.n_bytes = entry.factor ? quantize::MomentsFactor::bytes(size_of(*entry.moments)) : 0;
    n_bytes_ += entry.n_bytes;
    entry.is_made = failure == nullptr;
    changed_.notify_all();
    if (failure != nullptr) std::rethrow_exception(failure);
  }
  ++entry.n_leases;
  entry.last_use = ++n_uses_;
  return Lease(*this, entry);
}

// Reads rows, and factors on all threads: others wait for the result.
std::optional<quantize::MomentsFactor> MomentsFactors::made(
    const formats::StatisticTensor& moments) const {
  const formats::CalibrationStatistics& statistics = plan_.recipe.choices.importance->file();
  const std::uint64_t size = size_of(moments);
  return quantize::MomentsFactor::make(
      static_cast<std::size_t>(size), threads_,
      [&](std::size_t row, std::span<float> out) { statistics.read(moments, row * size, out); });
}

// Frees factors that no tensor uses, the least recently used first, until there is room. Returns
// false if tensors that use factors must end first.
bool MomentsFactors::make_room(std::uint64_t n_bytes) {
  while (n_bytes_ > 0 && n_bytes_ + n_bytes > most_bytes_) {
    Entry* oldest = nullptr;
    for (auto& [moments, entry] : entries_) {
      if (entry.factor && !entry.is_making && entry.n_leases == 0 &&
          (oldest == nullptr || entry.last_use < oldest->last_use))
        oldest = &entry;
    }
    if (oldest == nullptr) return false;
    forget(*oldest);
  }
  return true;
}

void MomentsFactors::forget(Entry& entry) {
  entry.factor.reset();
  entry.is_made = false;
  n_bytes_ -= entry.n_bytes;
  entry.n_bytes = 0;
}

void MomentsFactors::release(Entry& entry) {
  const std::lock_guard lock(mutex_);
  --entry.n_leases;
  if (entry.n_left > 0) --entry.n_left;
  if (entry.n_left == 0 && entry.n_leases == 0) forget(entry);
  changed_.notify_all();
}

}  // namespace ingot::convert
