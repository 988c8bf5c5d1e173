#include "convert/run/moments_factors.h"

#include <algorithm>
#include <optional>
#include <set>

#include "convert/plan/passes.h"
#include "formats/base/error.h"

namespace ingot::convert {

namespace {

std::uint64_t size_of(const formats::StatisticTensor& moments) {
  return moments.shape.back();
}

}  // namespace

FactorMemory factor_memory(const Plan& plan, std::uint64_t threads) {
  std::map<const formats::StatisticTensor*, std::uint64_t> left;
  std::vector<const formats::StatisticTensor*> order;
  for (const PlannedTensor& planned : plan.tensors) {
    if (!planned.carries_errors || !plan.is_here(planned)) continue;
    order.push_back(moments_of(plan, planned));
    ++left[order.back()];
  }
  FactorMemory memory{.n_factors = left.size()};
  std::uint64_t live = 0, most = 0, largest = 0;
  std::set<const formats::StatisticTensor*> made;
  for (const formats::StatisticTensor* moments : order) {
    const std::uint64_t n_bytes = quantize::MomentsFactor::bytes(size_of(*moments));
    const std::uint64_t n_to_make = quantize::MomentsFactor::bytes_to_make(size_of(*moments));
    if (made.insert(moments).second) {
      most = std::max(most, live + n_to_make);
      live += n_bytes;
    }
    memory.least = std::max(memory.least, n_to_make);
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
    const formats::StatisticTensor* moments = moments_of(plan, planned);
    Entry& entry = entries_[moments];
    entry.moments = moments;
    ++entry.n_left;
  }
}

const quantize::MomentsFactor* MomentsFactors::Lease::factor() const {
  return entry_ != nullptr && entry_->factor ? &*entry_->factor : nullptr;
}

MomentsFactors::Lease MomentsFactors::lease(const PlannedTensor& planned) {
  std::unique_lock lock(mutex_);
  Entry& entry = entries_.at(moments_of(plan_, planned));
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
      make(entry);
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
void MomentsFactors::make(Entry& entry) {
  const formats::CalibrationStatistics& statistics = plan_.recipe.choices.importance->file();
  const std::uint64_t size = size_of(*entry.moments);
  entry.factor = quantize::MomentsFactor::make(static_cast<std::size_t>(size), threads_,
                                               [&](std::size_t row, std::span<float> out) {
                                                 statistics.read(*entry.moments, row * size, out);
                                               });
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
