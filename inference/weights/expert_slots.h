#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "inference/weights/expert_store.h"

namespace ingot::inference {

/// Which experts are in memory, and which go when another needs the room: of those that nobody
/// holds the one used longest ago, and only then those that somebody has announced, the one needed
/// last first. Experts that are held or being read stay, and count. Not synchronised.
class ExpertSlots {
 public:
  enum class Phase : std::uint8_t { kAbsent, kReading, kReady, kFailed };

  /// `n_bytes[i]` is what expert i takes.
  ExpertSlots(std::vector<std::uint64_t> n_bytes, std::uint64_t budget);

  [[nodiscard]] Phase phase(std::size_t i) const { return slots_[i].phase; }
  [[nodiscard]] std::uint64_t bytes_used() const { return used_; }
  [[nodiscard]] std::uint64_t bytes_of(std::size_t i) const { return slots_[i].n_bytes; }

  /// Somebody uses the expert, or waits for it, until release().
  void hold(std::size_t i) { ++slots_[i].holders; }
  /// What is above the budget and not held any more goes at once.
  void release(std::size_t i);

  /// A new list of experts to come; those of the two latest lists are wanted.
  void begin_list() { ++list_; }
  void want(std::size_t i);
  /// It has come to its use.
  void forget(std::size_t i) { slots_[i].wanted_in = 0; }
  [[nodiscard]] bool is_wanted(std::size_t i) const;

  /// For whom room is made: what is needed now may drive out what is wanted, what is read ahead may
  /// not.
  enum class Claim : std::uint8_t { kNow, kAhead };
  [[nodiscard]] bool can_make_room(std::size_t i, Claim claim) const;
  /// Drops experts until this one fits, or there is none left to drop, and counts it from here on:
  /// it is being read.
  void begin_read(std::size_t i, Claim claim);
  void finish_read(std::size_t i, std::shared_ptr<const Expert> expert);
  /// Its room is free again. With a failure it is kFailed until take_failure(), else kAbsent.
  void fail_read(std::size_t i, std::exception_ptr failure);
  std::exception_ptr take_failure(std::size_t i);

  /// The expert of a kReady slot, which counts as a use.
  std::shared_ptr<const Expert> use(std::size_t i);

 private:
  struct Slot {
    std::uint64_t n_bytes = 0;
    Phase phase = Phase::kAbsent;
    std::size_t holders = 0;
    std::uint64_t last_use = 0;
    std::uint64_t wanted_in = 0;  ///< list, 0: none
    std::uint64_t wanted_at = 0;
    std::shared_ptr<const Expert> expert;
    std::exception_ptr failure;
  };

  [[nodiscard]] bool may_go(std::size_t i, Claim claim) const;
  /// The next to go; the number of slots when there is none.
  [[nodiscard]] std::size_t next_to_go(Claim claim) const;
  void make_room(std::uint64_t n_bytes, Claim claim);

  std::vector<Slot> slots_;
  std::uint64_t budget_;
  std::uint64_t used_ = 0;
  std::uint64_t clock_ = 0;
  std::uint64_t list_ = 0;
};

}  // namespace ingot::inference
