#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "convert/plan/plan.h"
#include "quantize/error_feedback.h"

namespace ingot::convert {

/// Memory that the factors of moments take (--gptq).
struct FactorMemory {
  std::uint64_t least = 0;  ///< bytes to make the largest
  std::uint64_t useful =
      0;  ///< bytes with which each is made once, in plan order on so many threads
  std::uint64_t n_factors = 0;
};
FactorMemory factor_memory(const Plan& plan, std::uint64_t threads);

/// The factors by which errors of columns are carried on, made when they are first asked for and
/// kept until the last tensor with the same input is done, or until others need the room: then they
/// are made again. Those of a stack whose experts have inputs of their own are made one after
/// another in the same room. Safe from many threads.
class MomentsFactors {
 public:
  /// `most_bytes` is at least FactorMemory::least. `done`: tensors that need none any more. The
  /// plan must outlive it.
  MomentsFactors(const Plan& plan, std::uint64_t most_bytes, std::size_t threads,
                 const std::vector<char>& done);
  MomentsFactors(const MomentsFactors&) = delete;
  MomentsFactors& operator=(const MomentsFactors&) = delete;

  struct Entry;
  /// Keeps a factor in memory. For one thread.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept
        : of_(std::exchange(other.of_, nullptr)),
          entry_(std::exchange(other.entry_, nullptr)),
          moments_(std::move(other.moments_)),
          own_(std::move(other.own_)) {}
    Lease& operator=(Lease&&) = delete;
    ~Lease() {
      if (of_ != nullptr) of_->release(*entry_);
    }
    /// The factor for the inputs of a matrix of the tensor, until the next call. Null: its moments
    /// are not known, or not positive definite. Throws as reading does.
    [[nodiscard]] const quantize::MomentsFactor* factor(std::uint64_t matrix);

   private:
    friend class MomentsFactors;
    Lease(MomentsFactors& of, Entry& entry,
          std::vector<const formats::StatisticTensor*> moments = {})
        : of_(&of), entry_(&entry), moments_(std::move(moments)) {}
    MomentsFactors* of_ = nullptr;
    Entry* entry_ = nullptr;
    /// Moments by matrix; empty: all matrices have the entry's.
    std::vector<const formats::StatisticTensor*> moments_;
    /// The matrix whose factor was made last, and that.
    std::optional<std::pair<std::uint64_t, std::optional<quantize::MomentsFactor>>> own_;
  };
  /// The factor of a tensor with PlannedTensor::carries_errors. Waits for room: a thread holds at
  /// most one lease, and no other memory, while it asks. Throws as reading does.
  Lease lease(const PlannedTensor& planned);

  /// A factor and its use; for the lease. Without moments: the room of one for a stack.
  struct Entry {
    const formats::StatisticTensor* moments = nullptr;
    std::uint64_t n_bytes = 0;  // taken now
    std::uint64_t n_leases = 0, n_left = 0, last_use = 0;
    bool is_making = false, is_made = false;
    std::optional<quantize::MomentsFactor> factor;
  };

 private:
  void release(Entry& entry);
  bool make_room(std::uint64_t n_bytes);
  void forget(Entry& entry);
  [[nodiscard]] std::optional<quantize::MomentsFactor> made(
      const formats::StatisticTensor& moments) const;

  const Plan& plan_;
  const std::uint64_t most_bytes_;
  const std::size_t threads_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<const formats::StatisticTensor*, Entry> entries_;
  std::map<const PlannedTensor*, Entry> rooms_;  // of stacks at work
  std::uint64_t n_bytes_ = 0, n_uses_ = 0;
};

}  // namespace ingot::convert
