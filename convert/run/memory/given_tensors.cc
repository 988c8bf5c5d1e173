#include "convert/run/memory/given_tensors.h"

#include <limits>
#include <utility>

#include "formats/base/error.h"

namespace ingot::convert {
namespace {

constexpr std::uint32_t kNoSet = std::numeric_limits<std::uint32_t>::max();

// More of these would not keep the workers busier, and each new page costs time.
constexpr std::uint64_t kMostReady = std::uint64_t{256} << 20;

}  // namespace

void GivenTensors::lend(std::string name, std::span<const std::byte> bytes, GivenForm form) {
  lent_[std::move(name)] = {.bytes = bytes, .form = std::move(form)};
}

GivenTensors::View GivenTensors::view_of(std::shared_ptr<const formats::Checkpoint> opened) const {
  if (opened->dialect().is_read_only || !opened->is_whole()) {
    throw Error(ErrorCode::kUnsupported,
                "slices, and weights in the order of AWQ or GPTQ, are converted only from files")
        .in_file(opened->directory().string());
  }
  formats::Draft draft = opened->draft_of_view();
  draft.stored.assign(opened->stored().begin(), opened->stored().end());
  draft.tensors.assign(opened->tensors().begin(), opened->tensors().end());
  auto held = std::make_unique<HeldBytes>(std::move(opened));
  HeldBytes* const bytes = held.get();
  for (std::uint32_t i = 0; !lent_.empty() && i < draft.stored.size(); ++i) {
    const formats::StoredTensor& tensor = draft.stored[i];
    const auto found = lent_.find(tensor.name);
    if (found == lent_.end())
      throw Error(ErrorCode::kMissingTensor, "has not been given").in_tensor(tensor.name);
    require_form(&found->second.form, found->second.bytes.size(), tensor);
    bytes->borrow(i, found->second.bytes);
  }
  draft.bytes = std::move(held);
  return {.checkpoint = formats::Checkpoint::view(std::move(draft)), .held = bytes};
}

formats::Checkpoint GivenTensors::lent_view(formats::Checkpoint opened) const {
  return view_of(std::make_shared<const formats::Checkpoint>(std::move(opened))).checkpoint;
}

std::shared_ptr<const formats::Checkpoint> GivenTensors::source(
    std::shared_ptr<const formats::Checkpoint> opened) {
  View view = view_of(std::move(opened));
  held_ = view.held;
  source_ = std::make_shared<const formats::Checkpoint>(std::move(view.checkpoint));
  return source_;
}

void GivenTensors::begin(const Plan& plan, const std::vector<std::vector<std::uint32_t>>& units) {
  const std::lock_guard lock(mutex_);
  has_begun_ = true;
  if (!lent_.empty()) {
    set_of_unit_.assign(units.size(), kNoSet);
    for (std::size_t unit = 0; unit < units.size(); ++unit) ready_.push_back(unit);
    is_finished_ = true;
    return;
  }
  sets_.emplace(plan, source_->stored(), *held_);
  units_of_set_.resize(sets_->count());
  n_open_.resize(sets_->count());
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    set_of_unit_.push_back(units[unit].empty() ? kNoSet : sets_->set_of_planned(units[unit][0]));
    if (units[unit].empty()) {
      ready_.push_back(unit);
    } else {
      units_of_set_[set_of_unit_.back()].push_back(unit);
    }
  }
  changed_.notify_all();
}

std::optional<std::size_t> GivenTensors::take() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !ready_.empty() || is_finished_ || failure_ != nullptr; });
  if (ready_.empty() || failure_ != nullptr) return std::nullopt;
  const std::size_t unit = ready_.front();
  ready_.pop_front();
  ++n_at_work_;
  n_ready_ -= share_of(unit);
  changed_.notify_all();
  return unit;
}

// Its part of the bytes of its set.
std::uint64_t GivenTensors::share_of(std::size_t unit) const {
  const std::uint32_t set = set_of_unit_[unit];
  return set == kNoSet ? 0 : sets_->n_bytes(set) / units_of_set_[set].size();
}

void GivenTensors::done(std::size_t unit) {
  const std::lock_guard lock(mutex_);
  --n_at_work_;
  const std::uint32_t set = set_of_unit_[unit];
  if (set != kNoSet && --n_open_[set] == 0) n_waiting_ -= sets_->drop(set, true);
  changed_.notify_all();
}

void GivenTensors::end_job(std::exception_ptr failure) {
  const std::lock_guard lock(mutex_);
  if (failure_ == nullptr) failure_ = std::move(failure);
  has_ended_ = true;
  changed_.notify_all();
}

void GivenTensors::require_job(std::unique_lock<std::mutex>& lock) {
  INGOT_CHECK(lock.owns_lock());
  if (failure_ != nullptr) std::rethrow_exception(failure_);
  if (has_ended_) throw Error(ErrorCode::kInvalidArgument, "the output was finished before");
}

void GivenTensors::wait_for_job() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return has_begun_ || has_ended_; });
  require_job(lock);
}

bool GivenTensors::has_begun() {
  const std::lock_guard lock(mutex_);
  return has_begun_;
}

void GivenTensors::put(std::string_view name, std::span<const std::byte> bytes,
                       const GivenForm& form) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    if (failure_ != nullptr || has_ended_ || n_waiting_ == 0) return true;
    return held_->n_held() + bytes.size() <= most_held_ &&
           (n_ready_ == 0 || n_ready_ + bytes.size() <= kMostReady);
  });
  require_job(lock);
  const std::uint64_t of_open_sets = held_->n_held() - n_waiting_;
  const auto set = sets_->put(name, bytes, &form, most_held_, of_open_sets);
  if (!set) return;
  const std::vector<std::size_t>& units = units_of_set_[*set];
  n_open_[*set] = units.size();
  if (units.empty()) {
    sets_->drop(*set, true);
    return;
  }
  n_waiting_ += sets_->n_bytes(*set);
  ready_.insert(ready_.end(), units.begin(), units.end());
  for (const std::size_t unit : units) n_ready_ += share_of(unit);
  changed_.notify_all();
}

void GivenTensors::finish() {
  std::unique_lock lock(mutex_);
  require_job(lock);
  sets_->finish();
  is_finished_ = true;
  changed_.notify_all();
}

std::exception_ptr GivenTensors::failure() {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void GivenTensors::abandon() {
  end_job(std::make_exception_ptr(
      Error(ErrorCode::kInterrupted, "stopped before all tensors were given")));
}

}  // namespace ingot::convert
