#include "inference/weights/expert_store.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "inference/weights/expert_slots.h"
#include "inference/weights/weight_store.h"

namespace ingot::inference {

using Claim = ExpertSlots::Claim;
using Phase = ExpertSlots::Phase;
using formats::Role;

namespace {

/// Gate, up and down of a routed expert, whether each has tensors of its own or those of a layer
/// are stacked: gate and up [E, 2I, D], gate rows first or in turn with up's, and down [E, D, I].
class ExpertParts {
 public:
  ExpertParts(const WeightStore& store, const ExpertShape& shape, ExpertId id)
      : shape_(shape), id_(id), outer_{.first = 0, .count = shape.hidden} {
    if (store.has({.role = Role::kExpertsGateUp, .layer = id.layer})) {
      stacked(store);
    } else {
      const formats::Shape in = {shape.intermediate, shape.hidden};
      const auto alone = [&](Role role, const formats::Shape& whole, const Range& rows,
                             const Range& cols) {
        return LinearPart{
            .name = store.name_of({.role = role, .layer = id.layer, .expert = id.expert}),
            .whole = whole,
            .rows = rows,
            .cols = cols};
      };
      if (shape.has_gate) parts_ = {alone(Role::kExpertGate, in, shape.inner, outer_)};
      parts_.push_back(alone(Role::kExpertUp, in, shape.inner, outer_));
      parts_.push_back(
          alone(Role::kExpertDown, {shape.hidden, shape.intermediate}, outer_, shape.inner));
    }
  }

  /// Gate, where there is one, up and down; gate and up are one part where their rows alternate.
  [[nodiscard]] const std::vector<LinearPart>& get() const { return parts_; }

 private:
  // A rank's stacks hold only its experts, in ascending order, and of each only the slice.
  void stacked(const WeightStore& store) {
    const std::string both = store.name_of({.role = Role::kExpertsGateUp, .layer = id_.layer});
    const std::string down = store.name_of({.role = Role::kExpertsDown, .layer = id_.layer});
    const formats::Shape& stored = store.shape_of(both);
    const bool is_rank = store.source().slicing() != nullptr && stored.size() == 3;
    std::size_t n = shape_.experts_in(id_.layer), matrix = id_.expert;
    if (is_rank && stored[0] != n) {
      const auto place = [&](const ExpertId& id) {
        return std::lower_bound(shape_.experts.begin(), shape_.experts.end(), id);
      };
      const auto first = place({.layer = id_.layer, .expert = 0});
      n = static_cast<std::size_t>(place({.layer = id_.layer + 1, .expert = 0}) - first);
      matrix = static_cast<std::size_t>(place(id_) - first);
    }
    const bool is_slice = is_rank && stored[1] == 2 * shape_.inner.count;
    const std::size_t width = is_slice ? shape_.inner.count : shape_.intermediate;
    const Range inner = {.first = is_slice ? 0 : shape_.inner.first, .count = shape_.inner.count};
    const formats::Shape gate_up = {n, 2 * width, shape_.hidden};
    const auto part = [&](const std::string& name, const formats::Shape& whole, const Range& rows,
                          const Range& cols) {
      return LinearPart{.name = name, .whole = whole, .matrix = matrix, .rows = rows, .cols = cols};
    };
    if (store.has_rows_in_turn(both)) {
      const Range pairs = {.first = 2 * inner.first, .count = 2 * inner.count};
      parts_ = {part(both, gate_up, pairs, outer_)};
    } else {
      parts_ = {part(both, gate_up, inner, outer_),
                part(both, gate_up, {.first = width + inner.first, .count = inner.count}, outer_)};
    }
    parts_.push_back(part(down, {n, shape_.hidden, width}, outer_, inner));
  }

  const ExpertShape& shape_;
  ExpertId id_;
  Range outer_;
  std::vector<LinearPart> parts_;
};

/// State that the thread that reads ahead, callers and living pointers share.
struct Shared {
  Shared(const std::vector<ExpertSlots::Size>& sizes, std::uint64_t budget)
      : slots(sizes, budget) {}

  std::mutex mutex;
  std::condition_variable_any changed;
  // Guarded by the mutex.
  ExpertSlots slots;
  std::deque<std::size_t> ahead;  ///< experts to be read, in order of use
  bool reads_ahead = false;       ///< a read in the background is on its way
  std::size_t waiting = 0;        ///< callers that wait for room; the background lets them pass
  ExpertCounters counters;
};

/// Keeps an expert in memory, from before it is read: an expert that was read for a caller who
/// still waits must not go again.
class Hold {
 public:
  Hold(std::shared_ptr<Shared> shared, std::size_t slot) : shared_(std::move(shared)), slot_(slot) {
    const std::lock_guard lock(shared_->mutex);
    shared_->slots.forget(slot_);
    shared_->slots.hold(slot_);
  }
  ~Hold() {
    expert = nullptr;
    const std::lock_guard lock(shared_->mutex);
    shared_->slots.release(slot_);
    if (!shared_->ahead.empty()) shared_->changed.notify_all();
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

  std::shared_ptr<const Expert> expert;

 private:
  std::shared_ptr<Shared> shared_;
  std::size_t slot_;
};

/// The first wanted expert that is not in memory, if there is room for it.
std::optional<std::size_t> next_ahead(Shared& shared) {
  auto& ahead = shared.ahead;
  while (!ahead.empty() && (!shared.slots.is_wanted(ahead.front()) ||
                            shared.slots.phase(ahead.front()) != Phase::kAbsent))
    ahead.pop_front();
  if (ahead.empty() || shared.waiting > 0) return std::nullopt;
  if (!shared.slots.can_make_room(ahead.front(), Claim::kAhead)) return std::nullopt;
  return ahead.front();
}

// Only one rank adds the bias to its share of the sum.
Range rows_of_down_bias(const ExpertShape& shape) {
  return {.first = 0, .count = shape.inner.first == 0 ? shape.hidden : 0};
}

/// The sizes of every expert in memory.
std::vector<ExpertSlots::Size> sizes_of(const WeightStore& store, const ExpertShape& shape) {
  std::vector<ExpertSlots::Size> sizes;
  sizes.reserve(shape.experts.size());
  for (const ExpertId id : shape.experts) {
    std::uint64_t& n_bytes = sizes.emplace_back(ExpertSlots::Size{.layer = id.layer}).n_bytes;
    const ExpertParts parts(store, shape, id);
    for (const LinearPart& part : parts.get()) n_bytes += store.bytes_of(part);
    if (shape.has_biases)
      n_bytes += (2 * shape.inner.count + rows_of_down_bias(shape).count) * sizeof(float);
  }
  return sizes;
}

ExpertStore::Need need_of(const std::vector<ExpertSlots::Size>& sizes) {
  ExpertStore::Need need;
  for (const ExpertSlots::Size& size : sizes) {
    need.all += size.n_bytes;
    need.largest = std::max(need.largest, size.n_bytes);
  }
  return need;
}

}  // namespace

ExpertShape ExpertShape::of_layer(std::uint32_t layer) const {
  ExpertShape of = *this;
  std::erase_if(of.experts, [&](const ExpertId& id) { return id.layer != layer; });
  return of;
}

struct ExpertStore::State {
  State(const WeightStore& from, ExpertShape wanted, std::size_t most_threads)
      : store(from), shape(std::move(wanted)), threads(std::max<std::size_t>(most_threads, 1)) {}

  [[nodiscard]] std::size_t count() const { return shape.experts.size(); }

  [[nodiscard]] std::size_t slot_of(std::uint32_t layer, std::uint32_t expert) const {
    const ExpertId id = {.layer = layer, .expert = expert};
    const auto place = std::lower_bound(shape.experts.begin(), shape.experts.end(), id);
    INGOT_CHECK(place != shape.experts.end() && *place == id);
    return static_cast<std::size_t>(place - shape.experts.begin());
  }

  [[nodiscard]] std::shared_ptr<const Expert> read(std::size_t slot, std::size_t n_threads) const {
    const ExpertParts parts(store, shape, shape.experts[slot]);
    std::vector<Linear> linears = store.read(parts.get(), n_threads);
    Expert expert;
    expert.down = std::move(linears.back());
    linears.pop_back();
    if (!shape.has_gate || linears.size() == 2) expert.up = std::move(linears.back());
    if (shape.has_gate) expert.gate = std::move(linears.front());
    if (shape.has_biases) {
      const ExpertId id = shape.experts[slot];
      const auto bias = [&](Role role, std::size_t n, const Range& mine) {
        return store.vector_part(
            store.name_of({.role = role, .layer = id.layer, .expert = id.expert}), n, mine);
      };
      expert.gate_bias = bias(Role::kExpertGateBias, shape.intermediate, shape.inner);
      expert.up_bias = bias(Role::kExpertUpBias, shape.intermediate, shape.inner);
      expert.down_bias = bias(Role::kExpertDownBias, shape.hidden, rows_of_down_bias(shape));
    }
    return std::make_shared<const Expert>(std::move(expert));
  }

  void read_all();
  std::exception_ptr read_unlocked(std::unique_lock<std::mutex>& lock, std::size_t slot,
                                   Claim claim);
  void read_ahead(const std::stop_token& stop);
  std::shared_ptr<const Expert> get(std::size_t slot);

  const WeightStore& store;
  ExpertShape shape;
  std::size_t threads;

  // All experts by slot, if everything is in memory; else empty.
  std::vector<std::shared_ptr<const Expert>> resident;
  std::uint64_t resident_bytes = 0;
  std::atomic<std::uint64_t> resident_hits = 0;

  std::shared_ptr<Shared> shared;  // null when everything is in memory
  std::jthread background;         // last, so that it ends before the rest is destroyed
};

// Whole experts side by side; each is too small to be worth several threads.
void ExpertStore::State::read_all() {
  resident.resize(count());
  std::atomic<std::size_t> next = 0;
  run_workers(std::min(threads, count()), [&](std::size_t) {
    try {
      for (std::size_t i = next++; i < count(); i = next++) resident[i] = read(i, 1);
    } catch (...) {
      next = count();
      throw;
    }
  });
  for (const auto& expert : resident) resident_bytes += expert->n_bytes();
}

// Reads an expert that is absent while others may take the lock. Returns the error, if any: then
// the slot is still being read.
std::exception_ptr ExpertStore::State::read_unlocked(std::unique_lock<std::mutex>& lock,
                                                     std::size_t slot, Claim claim) {
  shared->slots.begin_read(slot, claim);
  lock.unlock();
  std::shared_ptr<const Expert> expert;
  std::exception_ptr failure;
  try {
    expert = read(slot, threads);
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  if (failure) return failure;
  ++shared->counters.reads;
  shared->counters.bytes_read += shared->slots.bytes_of(slot);
  shared->slots.finish_read(slot, std::move(expert));
  return nullptr;
}

void ExpertStore::State::read_ahead(const std::stop_token& stop) {
  std::unique_lock lock(shared->mutex);
  while (true) {
    std::optional<std::size_t> next;
    shared->changed.wait(lock, stop, [&] {
      next = next_ahead(*shared);
      return next.has_value();
    });
    if (stop.stop_requested()) return;
    shared->ahead.pop_front();
    shared->reads_ahead = true;
    std::exception_ptr failure = read_unlocked(lock, *next, Claim::kAhead);
    shared->reads_ahead = false;
    if (failure) shared->slots.fail_read(*next, std::move(failure));
    shared->changed.notify_all();
  }
}

std::shared_ptr<const Expert> ExpertStore::State::get(std::size_t slot) {
  // Before the lock, which it takes itself when an error ends it.
  const auto hold = std::make_shared<Hold>(shared, slot);
  std::unique_lock lock(shared->mutex);
  ExpertSlots& slots = shared->slots;
  bool has_read = false;
  while (slots.phase(slot) != Phase::kReady) {
    if (slots.phase(slot) == Phase::kFailed) {
      const std::exception_ptr failure = slots.take_failure(slot);
      lock.unlock();
      std::rethrow_exception(failure);
    }
    if (slots.phase(slot) == Phase::kReading) {
      shared->changed.wait(lock);
      continue;
    }
    if (!slots.can_make_room(slot, Claim::kNow) && shared->reads_ahead) {
      // Experts that are being read may go once they are here, rather than the budget be exceeded.
      ++shared->waiting;
      shared->changed.wait(lock);
      --shared->waiting;
      continue;
    }
    has_read = true;
    const std::exception_ptr failure = read_unlocked(lock, slot, Claim::kNow);
    if (failure) slots.fail_read(slot, nullptr);
    shared->changed.notify_all();
    if (failure) {
      lock.unlock();
      std::rethrow_exception(failure);
    }
  }
  hold->expert = slots.use(slot);
  ++(has_read ? shared->counters.misses : shared->counters.hits);
  lock.unlock();
  return {hold, hold->expert.get()};
}

ExpertStore::Need ExpertStore::need(const WeightStore& store, const ExpertShape& shape) {
  return need_of(sizes_of(store, shape));
}

ExpertStore::ExpertStore(const WeightStore& store, ExpertShape shape, std::uint64_t budget,
                         std::size_t threads)
    : state_(std::make_unique<State>(store, std::move(shape), threads)) {
  const std::vector<ExpertSlots::Size> sizes = sizes_of(store, state_->shape);
  const Need enough = need_of(sizes);
  if (enough.all <= budget) {
    state_->read_all();
    return;
  }
  if (budget / 2 < enough.largest) {
    throw Error(ErrorCode::kLimit,
                "{} bytes are left for experts, but two of the largest take {} (all of them {}): "
                "raise --mem-limit by {}",
                budget, 2 * enough.largest, enough.all, 2 * enough.largest - budget);
  }
  state_->shared = std::make_shared<Shared>(sizes, budget);
  state_->background = std::jthread(
      [state = state_.get()](const std::stop_token& stop) { state->read_ahead(stop); });
}

ExpertStore::~ExpertStore() = default;

bool ExpertStore::all_resident() const {
  return state_->shared == nullptr;
}

void ExpertStore::prefetch(std::uint32_t layer, std::span<const std::uint32_t> experts) {
  if (all_resident()) return;
  Shared& shared = *state_->shared;
  const std::lock_guard lock(shared.mutex);
  shared.slots.begin_list(layer);
  for (const std::uint32_t expert : experts) {
    const std::size_t slot = state_->slot_of(layer, expert);
    shared.slots.want(slot);
    if (shared.slots.phase(slot) == Phase::kAbsent) shared.ahead.push_back(slot);
  }
  shared.changed.notify_all();
}

std::shared_ptr<const Expert> ExpertStore::get(std::uint32_t layer, std::uint32_t expert) {
  const std::size_t slot = state_->slot_of(layer, expert);
  if (!all_resident()) return state_->get(slot);
  ++state_->resident_hits;
  return state_->resident[slot];
}

ExpertCounters ExpertStore::counters() const {
  if (all_resident())
    return {.hits = state_->resident_hits,
            .reads = state_->count(),
            .bytes_read = state_->resident_bytes};
  const std::lock_guard lock(state_->shared->mutex);
  return state_->shared->counters;
}

std::uint64_t ExpertStore::bytes_held() const {
  if (all_resident()) return state_->resident_bytes;
  const std::lock_guard lock(state_->shared->mutex);
  return state_->shared->slots.bytes_used();
}

}  // namespace ingot::inference
