#include "inference/generate/scheduler.h"

#include <algorithm>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "inference/cache/kv_cache.h"

namespace ingot::inference {

Scheduler::Scheduler(const SchedulerLimits& limits) : limits_(limits) {
  if (limits.batch_tokens == 0)
    throw Error(ErrorCode::kInvalidArgument, "a step takes at least one token");
}

void Scheduler::add(std::size_t id, std::size_t prompt, std::size_t most) {
  Sequence sequence{.prompt = prompt, .most = most, .known = prompt};
  if (pages(sequence, most) > limits_.cache_pages) {
    throw Error(ErrorCode::kLimit,
                "prompt {} and its answer may have {} tokens, and the caches have room for {}", id,
                most, limits_.cache_pages * KvCache::kPageTokens);
  }
  INGOT_CHECK(sequences_.emplace(id, sequence).second);
  waiting_.push_back(id);
}

// Proposals are cached for a while, also by the layer that makes them.
std::size_t Scheduler::pages(const Sequence& sequence, std::size_t n_tokens) const {
  return ceil_div(std::min(n_tokens + limits_.drafts, std::max(sequence.most, n_tokens)),
                  KvCache::kPageTokens);
}

std::vector<Scheduler::Share> Scheduler::shares() const {
  std::vector<Share> shares;
  std::size_t left = limits_.batch_tokens;
  const auto take = [&](bool is_answer) {
    for (const std::size_t id : running_) {
      const Sequence& sequence = sequences_.at(id);
      const std::size_t unknown = sequence.known - sequence.cached;
      if (unknown == 0 || left == 0) continue;
      if (is_answer != (unknown == 1 && sequence.cached >= sequence.prompt)) continue;
      std::size_t end = sequence.known + sequence.proposed;
      if (sequence.cached < sequence.prompt) {
        end = std::min(end, sequence.prompt);
        end = std::min(end, (sequence.cached / kPrefillRows + 1) * kPrefillRows);
      }
      const std::size_t count = std::min(end - sequence.cached, left);
      shares.push_back({.id = id, .first = sequence.cached, .count = count});
      left -= count;
    }
  };
  take(true);
  take(false);
  return shares;
}

std::size_t Scheduler::pages_with(std::span<const Share> shares) const {
  std::size_t n_pages = 0;
  for (const std::size_t id : running_) {
    const Sequence& sequence = sequences_.at(id);
    const auto share =
        std::ranges::find_if(shares, [&](const Share& other) { return other.id == id; });
    n_pages += pages(sequence, sequence.cached + (share != shares.end() ? share->count : 0));
  }
  return n_pages;
}

// With room for its known tokens and for those of a page beyond, it does not go at once.
bool Scheduler::enter_next() {
  if (waiting_.empty()) return false;
  const std::size_t id = waiting_.front();
  const Sequence& sequence = sequences_.at(id);
  std::size_t n_pages =
      pages(sequence, std::min(sequence.known + KvCache::kPageTokens, sequence.most));
  for (const std::size_t other : running_) {
    const Sequence& runs = sequences_.at(other);
    n_pages += pages(runs, std::max(runs.known, runs.cached));
  }
  if (n_pages > limits_.cache_pages) return false;
  running_.push_back(id);
  waiting_.pop_front();
  return true;
}

Scheduler::Step Scheduler::next() {
  Step step;
  step.shares = shares();
  while (pages_with(step.shares) > limits_.cache_pages) {
    INGOT_CHECK(running_.size() > 1);
    const std::size_t id = running_.back();
    sequences_.at(id).cached = sequences_.at(id).proposed = 0;
    running_.pop_back();
    waiting_.push_front(id);
    step.preempted.push_back(id);
    step.shares = shares();
  }
  if (!step.preempted.empty()) return step;
  const auto n_rows = [&] {
    std::size_t n = 0;
    for (const Share& share : step.shares) n += share.count;
    return n;
  };
  while (n_rows() < limits_.batch_tokens && enter_next()) {
    step.entered.push_back(running_.back());
    step.shares = shares();
  }
  return step;
}

void Scheduler::advance(std::size_t id, std::size_t cached, std::size_t known,
                        std::size_t proposed) {
  Sequence& sequence = sequences_.at(id);
  INGOT_CHECK(cached <= known && known <= sequence.most && proposed <= limits_.drafts);
  sequence.cached = cached;
  sequence.known = known;
  sequence.proposed = proposed;
}

void Scheduler::finish(std::size_t id) {
  std::erase(running_, id);
  std::erase(waiting_, id);
  INGOT_CHECK(sequences_.erase(id) == 1);
}

std::size_t Scheduler::n_cached() const {
  std::size_t n_tokens = 0;
  for (const std::size_t id : running_) n_tokens += sequences_.at(id).cached;
  return n_tokens;
}

std::size_t Scheduler::outstanding() const {
  std::size_t n_tokens = 0;
  for (const auto& [id, sequence] : sequences_) n_tokens += sequence.most - sequence.cached;
  return n_tokens;
}

}  // namespace ingot::inference
