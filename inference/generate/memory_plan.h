#pragma once

#include <cstdint>
#include <span>

#include "formats/checkpoint/checkpoint.h"
#include "inference/base/profile.h"
#include "inference/cache/kv_cache.h"
#include "inference/generate/scheduler.h"
#include "inference/model/model_memory.h"

namespace ingot::inference {

/// The memory that a run needs: for its weights, and for everything else.
struct RunMemory : WeightNeed {
  std::uint64_t cache = 0;  ///< bytes for all sequences at their final lengths
  /// Tokens of all sequences at their final lengths, in whole pages.
  std::uint64_t cache_tokens = 0;
  std::uint64_t sequence = 0;  ///< bytes of `cache` per sequence that do not depend on its length
  std::uint64_t scratch = 0;   ///< largest working set of a step, an upper estimate

  [[nodiscard]] std::uint64_t least() const { return cache + scratch + resident + two_experts; }
  [[nodiscard]] std::uint64_t all() const { return cache + scratch + resident + experts; }
};

/// Estimates the memory of a model, or of the rank whose directory `source` is, that generates up
/// to `final_lengths` tokens per sequence, at most `batch_tokens` in a step, of which its MTP layer
/// proposes `drafts` for a sequence (0: it stays out).
RunMemory run_memory(const formats::Checkpoint& source, Profile profile, KvFormat format,
                     std::span<const std::size_t> final_lengths, std::size_t threads,
                     std::size_t drafts = 0, std::size_t batch_tokens = kPrefillRows);

/// Estimates the memory of a LayerStream, its MTP layer included, that runs whole sequences of
/// these lengths through one layer after the other: `resident` and `experts` are the largest
/// layer's. Hidden states that its caller keeps are not counted, nor logits.
RunMemory stream_memory(const formats::Checkpoint& source, Profile profile,
                        std::span<const std::size_t> lengths, std::size_t threads);

/// How a limit is divided.
struct MemoryShare {
  std::size_t cache_tokens = 0;  ///< GenerateOptions::cache_tokens
  std::uint64_t weights = 0;     ///< ModelOptions::weight_limit
};
/// Divides a limit for a run whose sequences may wait for room in the caches (Scheduler): as many
/// tokens as the longest sequences have that a step can serve, where they fit with all weights;
/// else the room that all weights leave, or a quarter of the room that the least of them leave, and
/// never less than the longest sequence. States of all sequences that a step can serve always fit.
/// Throws as weight_limit does.
MemoryShare share_memory(const RunMemory& need, std::span<const std::size_t> final_lengths,
                         std::size_t batch_tokens, std::uint64_t limit);

/// Bytes that `limit` leaves for weights. Throws kLimit, with the figures and a limit that would be
/// enough, when they do not suffice.
std::uint64_t weight_limit(const RunMemory& need, std::uint64_t limit);

}  // namespace ingot::inference
