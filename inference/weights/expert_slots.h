#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "inference/weights/expert_store.h"

namespace ingot::inference {

/// Slots of the experts in memory, and the order in which experts go when another needs the room.
/// The expert that goes is not held, and was unused for most visits of its layer; between equal
/// ones it is the one whose layer comes again last, since steps go through the layers in order;
/// then the one used longest ago. Announced experts go after all of these, the one needed last
/// first. Experts that are held or being read stay, and count. Not synchronised.
///
/// With one token at a time, the expert used longest ago goes. A large batch uses most experts in
/// every step: then the experts of the layers to come stay. If only age counted, each would go just
/// before its use.
class ExpertSlots {
 public:
  enum class Phase : std::uint8_t { kAbsent, kReading, kReady, kFailed };

  /// The bytes of expert i, and its layer.
  struct Size {
    std::uint64_t n_bytes = 0;
    std::uint32_t layer = 0;
  };
  ExpertSlots(const std::vector<Size>& sizes, std::uint64_t budget);

  [[nodiscard]] Phase phase(std::size_t i) const { return slots_[i].phase; }
  [[nodiscard]] std::uint64_t bytes_used() const { return used_; }
  [[nodiscard]] std::uint64_t bytes_of(std::size_t i) const { return slots_[i].n_bytes; }

  /// Keeps the expert in memory, because it is used or waited for, until release().
  void hold(std::size_t i) { ++slots_[i].holders; }
  /// Ends one hold(). An expert above the budget that is not held any more goes at once.
  void release(std::size_t i);

  /// Begins a visit of a layer: a new list of experts to come; the experts of the two latest lists
  /// are wanted.
  void begin_list(std::uint32_t layer);
  void want(std::size_t i);
  /// Takes the expert off the lists: it has come to its use.
  void forget(std::size_t i) { slots_[i].wanted_in = 0; }
  [[nodiscard]] bool is_wanted(std::size_t i) const;

  /// Reader that needs room. kNow may drive out announced experts. kAhead may not, and while there
  /// is work before it, it may not drive out experts that the latest visits of other layers have
  /// used.
  enum class Claim : std::uint8_t { kNow, kAhead };
  [[nodiscard]] bool can_make_room(std::size_t i, Claim claim) const;
  /// Drops experts until this one fits, or there is none left to drop, and counts it from here on:
  /// it is being read.
  void begin_read(std::size_t i, Claim claim);
  void finish_read(std::size_t i, std::shared_ptr<const Expert> expert);
  /// Frees the expert's room again. With a failure the expert is kFailed until take_failure(), else
  /// kAbsent.
  void fail_read(std::size_t i, std::exception_ptr failure);
  std::exception_ptr take_failure(std::size_t i);

  /// Returns the expert of a kReady slot, and counts a use.
  std::shared_ptr<const Expert> use(std::size_t i);

 private:
  struct Slot {
    std::uint64_t n_bytes = 0;
    std::size_t layer = 0;  ///< number in layers_
    Phase phase = Phase::kAbsent;
    std::size_t holders = 0;
    std::uint64_t last_use = 0, last_visit = 0;
    std::uint64_t wanted_in = 0;  ///< number of the list that wants it; 0: none
    std::uint64_t wanted_at = 0;
    std::shared_ptr<const Expert> expert;
    std::exception_ptr failure;
  };

  /// True if the latest visit of another layer used the expert.
  [[nodiscard]] bool comes_again(const Slot& slot) const;
  /// True if an expert that is wanted before `i` is loaded or being loaded.
  [[nodiscard]] bool has_work_before(std::size_t i) const;
  /// Returns the experts that may go when room is made for `i`, the next to go first.
  [[nodiscard]] std::vector<std::size_t> order_of_leaving(std::size_t i, Claim claim) const;
  void make_room(std::size_t i, std::uint64_t n_bytes, Claim claim);
  void mark_use(Slot& slot);
  [[nodiscard]] std::size_t number_of(std::uint32_t layer) const;

  std::vector<Slot> slots_;
  std::vector<std::uint32_t> layers_;  // ascending
  std::vector<std::uint64_t> visits_;  // visits, by number in layers_
  std::size_t visited_ = 0;            // the latest
  std::uint64_t budget_;
  std::uint64_t used_ = 0;
  std::uint64_t clock_ = 0;
  std::uint64_t list_ = 0;
};

}  // namespace ingot::inference
