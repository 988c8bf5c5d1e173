#include "inference/weights/expert_slots.h"

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include "formats/base/error.h"

// Choosing goes through all slots: 15,000 of them take microseconds, reading one expert
// milliseconds.

namespace ingot::inference {

ExpertSlots::ExpertSlots(const std::vector<Size>& sizes, std::uint64_t budget) : budget_(budget) {
  for (const Size& size : sizes) layers_.push_back(size.layer);
  std::ranges::sort(layers_);
  layers_.erase(std::unique(layers_.begin(), layers_.end()), layers_.end());
  visits_.resize(layers_.size());
  for (const Size& size : sizes)
    slots_.push_back({.n_bytes = size.n_bytes, .layer = number_of(size.layer)});
}

std::size_t ExpertSlots::number_of(std::uint32_t layer) const {
  const auto place = std::ranges::lower_bound(layers_, layer);
  INGOT_CHECK(place != layers_.end() && *place == layer);
  return static_cast<std::size_t>(place - layers_.begin());
}

void ExpertSlots::begin_list(std::uint32_t layer) {
  ++list_;
  visited_ = number_of(layer);
  ++visits_[visited_];
}

void ExpertSlots::mark_use(Slot& slot) {
  slot.last_use = ++clock_;
  slot.last_visit = visits_[slot.layer];
}

void ExpertSlots::release(std::size_t i) {
  INGOT_CHECK(slots_[i].holders > 0);
  --slots_[i].holders;
  make_room(i, 0, Claim::kNow);
}

void ExpertSlots::want(std::size_t i) {
  slots_[i].wanted_in = list_;
  slots_[i].wanted_at = ++clock_;
}

bool ExpertSlots::is_wanted(std::size_t i) const {
  // A list whose user never came must not pin its experts for ever.
  return slots_[i].wanted_in != 0 && slots_[i].wanted_in + 1 >= list_;
}

bool ExpertSlots::comes_again(const Slot& slot) const {
  return slot.layer != visited_ && slot.last_visit == visits_[slot.layer];
}

bool ExpertSlots::has_work_before(std::size_t i) const {
  for (std::size_t other = 0; other < slots_.size(); ++other) {
    const Slot& slot = slots_[other];
    if (slot.phase != Phase::kAbsent && is_wanted(other) && slot.wanted_at < slots_[i].wanted_at)
      return true;
  }
  return false;
}

std::vector<std::size_t> ExpertSlots::order_of_leaving(std::size_t i, Claim claim) const {
  const bool is_ahead = claim == Claim::kAhead, only_spent = is_ahead && has_work_before(i);
  std::vector<std::size_t> leaving;
  for (std::size_t other = 0; other < slots_.size(); ++other) {
    const Slot& slot = slots_[other];
    if (slot.phase != Phase::kReady || slot.holders != 0) continue;
    if (is_ahead && is_wanted(other)) continue;
    if (only_spent && comes_again(slot)) continue;
    leaving.push_back(other);
  }
  const auto order = [&](std::size_t other) {
    const Slot& slot = slots_[other];
    if (is_wanted(other))
      return std::tuple(true, std::uint64_t{0}, std::size_t{0}, ~slot.wanted_at);
    const std::uint64_t unused_visits = visits_[slot.layer] - slot.last_visit;
    // Layers that the step passes before it comes to this one again.
    const std::size_t between = (slot.layer + layers_.size() - visited_ - 1) % layers_.size();
    return std::tuple(false, ~unused_visits, ~between, slot.last_use);
  };
  std::ranges::sort(leaving, std::less<>(), order);
  return leaving;
}

bool ExpertSlots::can_make_room(std::size_t i, Claim claim) const {
  std::uint64_t stays = used_ + slots_[i].n_bytes;
  if (stays <= budget_) return true;
  for (const std::size_t other : order_of_leaving(i, claim)) stays -= slots_[other].n_bytes;
  return stays <= budget_;
}

void ExpertSlots::make_room(std::size_t i, std::uint64_t n_bytes, Claim claim) {
  if (used_ + n_bytes <= budget_) return;
  for (const std::size_t other : order_of_leaving(i, claim)) {
    if (used_ + n_bytes <= budget_) return;
    slots_[other].expert.reset();
    slots_[other].phase = Phase::kAbsent;
    used_ -= slots_[other].n_bytes;
  }
}

void ExpertSlots::begin_read(std::size_t i, Claim claim) {
  INGOT_CHECK(slots_[i].phase == Phase::kAbsent);
  make_room(i, slots_[i].n_bytes, claim);
  slots_[i].phase = Phase::kReading;
  used_ += slots_[i].n_bytes;
}

void ExpertSlots::finish_read(std::size_t i, std::shared_ptr<const Expert> expert) {
  INGOT_CHECK(slots_[i].phase == Phase::kReading);
  slots_[i].phase = Phase::kReady;
  slots_[i].expert = std::move(expert);
  mark_use(slots_[i]);
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
  mark_use(slots_[i]);
  return slots_[i].expert;
}

}  // namespace ingot::inference
