#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <span>
#include <vector>

namespace ingot::inference {

/// A prompt is fed in runs that cross no multiple of this many tokens.
inline constexpr std::size_t kPrefillRows = 512;

/// Capacity of a step and of the caches.
struct SchedulerLimits {
  std::size_t batch_tokens = kPrefillRows;  ///< rows of a step, at least one
  std::size_t cache_pages = 0;              ///< pages of KvCache::kPageTokens tokens
  std::size_t drafts = 0;                   ///< tokens that may be proposed for a sequence's step
};

/// Continuous batching as pure decisions, without a model: which sequences are being computed, and
/// how many tokens of each the next step takes. Sequences that have ended leave, those that wait
/// enter in the order in which they came, as soon as the caches have room for their known tokens.
/// Where caches become short, the sequence that entered last is preempted: it waits in front of
/// the others, and is computed again later. The oldest one always goes on, so that all come to an
/// end.
///
/// A step takes the answers first, oldest first; the rest of its rows goes to prompts, and to
/// sequences that are computed again, in runs that cross neither a multiple of kPrefillRows nor the
/// end of the prompt.
class Scheduler {
 public:
  /// Throws kInvalidArgument for a step without rows.
  explicit Scheduler(const SchedulerLimits& limits);

  /// Adds a sequence of `prompt` known tokens that may have `most` in the end. Throws kLimit when
  /// the caches have no room even for it by itself.
  void add(std::size_t id, std::size_t prompt, std::size_t most);

  /// Tokens [first, first + count) of a sequence; beyond those known they are proposals.
  struct Share {
    std::size_t id = 0, first = 0, count = 0;
  };
  struct Step {
    /// Sequences that leave and that enter the caches, in this order, before the shares.
    std::vector<std::size_t> preempted, entered;
    std::vector<Share> shares;  ///< shares of sequences; empty when there is no work
  };
  /// The next step. The caller reports the result of each share (advance, finish).
  Step next();

  /// Reports a sequence after a step: `cached` tokens are in the caches, `known` are known, and so
  /// many more are proposed.
  void advance(std::size_t id, std::size_t cached, std::size_t known, std::size_t proposed = 0);
  /// The sequence has come to its end.
  void finish(std::size_t id);

  [[nodiscard]] std::size_t n_running() const { return running_.size(); }
  [[nodiscard]] std::size_t n_waiting() const { return waiting_.size(); }
  /// Tokens in the caches, proposals left out.
  [[nodiscard]] std::size_t n_cached() const;
  /// Tokens that are still to be computed, if every answer becomes as long as it may.
  [[nodiscard]] std::size_t outstanding() const;

 private:
  struct Sequence {
    std::size_t prompt = 0, most = 0, known = 0, cached = 0, proposed = 0;
  };

  [[nodiscard]] std::vector<Share> shares() const;
  [[nodiscard]] std::size_t pages(const Sequence& sequence, std::size_t n_tokens) const;
  /// Pages in use when these shares are computed.
  [[nodiscard]] std::size_t pages_with(std::span<const Share> shares) const;
  bool enter_next();

  SchedulerLimits limits_;
  std::map<std::size_t, Sequence> sequences_;
  std::vector<std::size_t> running_;  // the oldest first
  std::deque<std::size_t> waiting_;
};

}  // namespace ingot::inference
