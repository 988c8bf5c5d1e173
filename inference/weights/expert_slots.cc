#include "inference/weights/expert_slots.h"

#include <tuple>
#include <utility>

#include "formats/base/error.h"

// Choosing goes through all slots: 15,000 of them take microseconds, reading one expert
// milliseconds.

namespace ingot::inference {

ExpertSlots::ExpertSlots(std::vector<std::uint64_t> n_bytes, std::uint64_t budget)
    : slots_(n_bytes.size()), budget_(budget) {
  for (std::size_t i = 0; i < n_bytes.size(); ++i) slots_[i].n_bytes = n_bytes[i];
}

void ExpertSlots::release(std::size_t i) {
  INGOT_CHECK(slots_[i].holders > 0);
  --slots_[i].holders;
  make_room(0, Claim::kNow);
}

void ExpertSlots::want(std::size_t i) {
  slots_[i].wanted_in = list_;
  slots_[i].wanted_at = ++clock_;
}

bool ExpertSlots::is_wanted(std::size_t i) const {
  // A list whose user never came must not pin its experts for ever.
  return slots_[i].wanted_in != 0 && slots_[i].wanted_in + 1 >= list_;
}

bool ExpertSlots::may_go(std::size_t i, Claim claim) const {
  const Slot& slot = slots_[i];
  if (slot.phase != Phase::kReady || slot.holders != 0) return false;
  return claim == Claim::kNow || !is_wanted(i);
}

std::size_t ExpertSlots::next_to_go(Claim claim) const {
  const auto order = [&](std::size_t i) {
    const bool wanted = is_wanted(i);
    return std::tuple(wanted, wanted ? ~slots_[i].wanted_at : slots_[i].last_use);
  };
  std::size_t best = slots_.size();
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (may_go(i, claim) && (best == slots_.size() || order(i) < order(best))) best = i;
  }
  return best;
}

bool ExpertSlots::can_make_room(std::size_t i, Claim claim) const {
  std::uint64_t stays = used_ + slots_[i].n_bytes;
  if (stays <= budget_) return true;
  for (std::size_t other = 0; other < slots_.size(); ++other) {
    if (may_go(other, claim)) stays -= slots_[other].n_bytes;
  }
  return stays <= budget_;
}

void ExpertSlots::make_room(std::uint64_t n_bytes, Claim claim) {
  while (used_ + n_bytes > budget_) {
    const std::size_t i = next_to_go(claim);
    if (i == slots_.size()) return;
    slots_[i].expert.reset();
    slots_[i].phase = Phase::kAbsent;
    used_ -= slots_[i].n_bytes;
  }
}

void ExpertSlots::begin_read(std::size_t i, Claim claim) {
  INGOT_CHECK(slots_[i].phase == Phase::kAbsent);
  make_room(slots_[i].n_bytes, claim);
  slots_[i].phase = Phase::kReading;
  used_ += slots_[i].n_bytes;
}

void ExpertSlots::finish_read(std::size_t i, std::shared_ptr<const Expert> expert) {
  INGOT_CHECK(slots_[i].phase == Phase::kReading);
  slots_[i].phase = Phase::kReady;
  slots_[i].expert = std::move(expert);
  slots_[i].last_use = ++clock_;
}

void ExpertSlots::fail_read(std::size_t i, std::exception_ptr failure) {
  INGOT_CHECK(slots_[i].phase == Phase::kReading);
  used_ -= slots_[i].n_bytes;
  slots_[i].phase = failure ? Phase::kFailed : Phase::kAbsent;
  slots_[i].failure = std::move(failure);
}

std::exception_ptr ExpertSlots::take_failure(std::size_t i) {
  INGOT_CHECK(slots_[i].phase == Phase::kFailed);
  slots_[i].phase = Phase::kAbsent;
  return std::exchange(slots_[i].failure, nullptr);
}

std::shared_ptr<const Expert> ExpertSlots::use(std::size_t i) {
  INGOT_CHECK(slots_[i].phase == Phase::kReady);
  slots_[i].last_use = ++clock_;
  return slots_[i].expert;
}

}  // namespace ingot::inference
