#include "inference/weights/expert_store.h"

#include <algorithm>
#include <array>
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
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "inference/weights/expert_slots.h"
#include "inference/weights/weight_store.h"

namespace ingot::inference {

using Claim = ExpertSlots::Claim;
using Phase = ExpertSlots::Phase;

namespace {

/// Reads routed experts, whether each has tensors of its own (`mlp.experts.E.gate_proj.weight`) or
/// those of a layer are stacked (`mlp.experts.gate_up_proj` [E, 2I, D], gate rows first, and
/// `mlp.experts.down_proj` [E, D, I]). Safe from many threads.
class ExpertReader {
 public:
  /// `store` must outlive this.
  ExpertReader(const WeightStore& store, const ExpertShape& shape)
      : store_(store),
        n_experts_(shape.n_experts),
        hidden_(shape.hidden),
        intermediate_(shape.intermediate) {}

  /// Bytes that the expert takes in memory. Errors as WeightStore::read.
  [[nodiscard]] std::uint64_t bytes_of(std::uint32_t layer, std::uint32_t expert) const;
  [[nodiscard]] Expert read(std::uint32_t layer, std::uint32_t expert, std::size_t threads) const;

 private:
  struct Parts;
  [[nodiscard]] Parts parts_of(std::uint32_t layer, std::uint32_t expert) const;

  const WeightStore& store_;
  std::size_t n_experts_, hidden_, intermediate_;
};

/// Gate, up and down.
struct ExpertReader::Parts {
  std::array<std::string, 3> names;
  std::array<LinearPart, 3> parts;
  /// The part, with the name that it points to.
  [[nodiscard]] LinearPart operator[](std::size_t i) const {
    LinearPart part = parts[i];
    part.name = names[i];
    return part;
  }
};

ExpertReader::Parts ExpertReader::parts_of(std::uint32_t layer, std::uint32_t expert) const {
  const std::string all = fmt::format("model.layers.{}.mlp.experts.", layer);
  const Range inner = {.first = 0, .count = intermediate_};
  const Range outer = {.first = 0, .count = hidden_};
  const std::string stack = all + "gate_up_proj";
  if (store_.has(stack)) {
    const formats::Shape both = {n_experts_, 2 * intermediate_, hidden_};
    const Range second = {.first = intermediate_, .count = intermediate_};
    return {.names = {stack, stack, all + "down_proj"},
            .parts = {LinearPart{.whole = both, .matrix = expert, .rows = inner, .cols = outer},
                      LinearPart{.whole = both, .matrix = expert, .rows = second, .cols = outer},
                      LinearPart{.whole = {n_experts_, hidden_, intermediate_},
                                 .matrix = expert,
                                 .rows = outer,
                                 .cols = inner}}};
  }
  const auto name = [&](const char* module) {
    return fmt::format("{}{}.{}_proj.weight", all, expert, module);
  };
  const LinearPart in = {.whole = {intermediate_, hidden_}, .rows = inner, .cols = outer};
  return {.names = {name("gate"), name("up"), name("down")},
          .parts = {in, in,
                    LinearPart{.whole = {hidden_, intermediate_}, .rows = outer, .cols = inner}}};
}

std::uint64_t ExpertReader::bytes_of(std::uint32_t layer, std::uint32_t expert) const {
  const Parts parts = parts_of(layer, expert);
  return store_.bytes_of(parts[0]) + store_.bytes_of(parts[1]) + store_.bytes_of(parts[2]);
}

Expert ExpertReader::read(std::uint32_t layer, std::uint32_t expert, std::size_t threads) const {
  const Parts parts = parts_of(layer, expert);
  const std::array<LinearPart, 3> all = {parts[0], parts[1], parts[2]};
  std::vector<Linear> linears = store_.read(all, threads);
  return {
      .gate = std::move(linears[0]), .up = std::move(linears[1]), .down = std::move(linears[2])};
}

/// What the thread that reads ahead, callers and living pointers share.
struct Shared {
  Shared(std::vector<std::uint64_t> n_bytes, std::uint64_t budget)
      : slots(std::move(n_bytes), budget) {}

  std::mutex mutex;
  std::condition_variable_any changed;
  // Guarded by the mutex.
  ExpertSlots slots;
  std::deque<std::size_t> ahead;  ///< to be read, in order of use
  bool reads_ahead = false;       ///< a read in the background is on its way
  std::size_t waiting = 0;        ///< callers that wait for room; the background lets them pass
  ExpertCounters counters;
};

/// Keeps an expert in memory, from before it is read: what has been read for somebody who still
/// waits must not go again.
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

/// The sizes of every expert, layer by layer.
std::vector<std::uint64_t> sizes_of(const ExpertReader& reader, const ExpertShape& shape) {
  std::vector<std::uint64_t> sizes;
  sizes.reserve(shape.layers.size() * shape.mine.count);
  for (const std::uint32_t layer : shape.layers) {
    for (std::size_t i = 0; i < shape.mine.count; ++i)
      sizes.push_back(reader.bytes_of(layer, static_cast<std::uint32_t>(shape.mine.first + i)));
  }
  return sizes;
}

ExpertStore::Need need_of(const std::vector<std::uint64_t>& sizes) {
  ExpertStore::Need need;
  for (const std::uint64_t n_bytes : sizes) {
    need.all += n_bytes;
    need.largest = std::max(need.largest, n_bytes);
  }
  return need;
}

}  // namespace

struct ExpertStore::State {
  State(const WeightStore& store, ExpertShape wanted, std::size_t most_threads)
      : shape(std::move(wanted)),
        reader(store, shape),
        threads(std::max<std::size_t>(most_threads, 1)) {
    for (std::size_t i = 0; i < shape.layers.size(); ++i) place_of_layer[shape.layers[i]] = i;
  }

  [[nodiscard]] std::size_t count() const { return shape.layers.size() * shape.mine.count; }

  [[nodiscard]] std::size_t slot_of(std::uint32_t layer, std::uint32_t expert) const {
    const auto place = place_of_layer.find(layer);
    INGOT_CHECK(place != place_of_layer.end());
    INGOT_CHECK(expert >= shape.mine.first && expert - shape.mine.first < shape.mine.count);
    return place->second * shape.mine.count + (expert - shape.mine.first);
  }

  [[nodiscard]] std::shared_ptr<const Expert> read(std::size_t slot, std::size_t n_threads) const {
    const std::uint32_t layer = shape.layers[slot / shape.mine.count];
    const auto expert = static_cast<std::uint32_t>(shape.mine.first + slot % shape.mine.count);
    return std::make_shared<const Expert>(reader.read(layer, expert, n_threads));
  }

  void read_all();
  void read_ahead(const std::stop_token& stop);
  std::shared_ptr<const Expert> get(std::size_t slot);

  ExpertShape shape;
  ExpertReader reader;
  std::size_t threads;
  std::unordered_map<std::uint32_t, std::size_t> place_of_layer;

  // Everything in memory: by slot. Else empty.
  std::vector<std::shared_ptr<const Expert>> resident;
  std::uint64_t resident_bytes = 0;
  std::atomic<std::uint64_t> resident_hits = 0;

  std::shared_ptr<Shared> shared;  // null when everything is in memory
  std::jthread background;         // the last member: ends before the others
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
    shared->slots.begin_read(*next, Claim::kAhead);
    shared->reads_ahead = true;
    lock.unlock();
    std::shared_ptr<const Expert> expert;
    std::exception_ptr failure;
    try {
      expert = read(*next, threads);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    shared->reads_ahead = false;
    if (failure) {
      shared->slots.fail_read(*next, std::exchange(failure, nullptr));
    } else {
      ++shared->counters.reads;
      shared->counters.bytes_read += shared->slots.bytes_of(*next);
      shared->slots.finish_read(*next, std::move(expert));
    }
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
      // What is being read may go once it is here, rather than the budget be exceeded.
      ++shared->waiting;
      shared->changed.wait(lock);
      --shared->waiting;
      continue;
    }
    slots.begin_read(slot, Claim::kNow);
    has_read = true;
    lock.unlock();
    std::shared_ptr<const Expert> expert;
    try {
      expert = read(slot, threads);
    } catch (...) {
      lock.lock();
      slots.fail_read(slot, nullptr);
      shared->changed.notify_all();
      lock.unlock();
      throw;
    }
    lock.lock();
    ++shared->counters.reads;
    shared->counters.bytes_read += slots.bytes_of(slot);
    slots.finish_read(slot, std::move(expert));
    shared->changed.notify_all();
  }
  hold->expert = slots.use(slot);
  ++(has_read ? shared->counters.misses : shared->counters.hits);
  lock.unlock();
  return {hold, hold->expert.get()};
}

ExpertStore::Need ExpertStore::need(const WeightStore& store, const ExpertShape& shape) {
  return need_of(sizes_of(ExpertReader(store, shape), shape));
}

ExpertStore::ExpertStore(const WeightStore& store, ExpertShape shape, std::uint64_t budget,
                         std::size_t threads)
    : state_(std::make_unique<State>(store, std::move(shape), threads)) {
  std::vector<std::uint64_t> sizes = sizes_of(state_->reader, state_->shape);
  const Need enough = need_of(sizes);
  if (enough.all <= budget) {
    state_->read_all();
    return;
  }
  if (budget / 2 < enough.largest) {
    throw Error(ErrorCode::kLimit,
                fmt::format("{} bytes are left for experts, but two of the largest take {} (all of "
                            "them {}): raise --mem-limit by {}",
                            budget, 2 * enough.largest, enough.all, 2 * enough.largest - budget));
  }
  state_->shared = std::make_shared<Shared>(std::move(sizes), budget);
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
  shared.slots.begin_list();
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
            .reads = state_->shape.layers.size() * state_->shape.mine.count,
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
