#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "convert/journal.h"
#include "convert/plan.h"
#include "convert/window_writer.h"

namespace ingot::convert {

/// Time spent by all threads together, per stage, and what it moved.
struct StageTimes {
  std::atomic<std::uint64_t> read_ns = 0, compute_ns = 0, hash_ns = 0;
  std::atomic<std::uint64_t> read_bytes = 0, compute_bytes = 0, hash_bytes = 0;
};

/// What all items of a job share.
struct ItemContext {
  const formats::Checkpoint& source;
  const Plan& plan;
  const Recipe& recipe;
  WindowWriter& writer;
  StageTimes& times;
  std::atomic<std::uint64_t>& done_bytes;  ///< output bytes produced, for progress
  std::function<void()>
      check_stop;  ///< called per band; throws kInterrupted when the user asked to stop
};

/// Runs items on one thread: reads, converts and hands to the writer, band by band. Its buffers are
/// item_runner_bytes() long in all.
class ItemRunner {
 public:
  explicit ItemRunner(ItemContext& context);

  /// Converts or copies one planned tensor and returns the hashes of its stored parts on both
  /// sides; the caller keeps them and then calls WindowWriter::finish_item. Throws kBadScale or
  /// kNonFinite, naming file and tensor, for values that no allowance covers.
  ItemHashes run(std::uint32_t item);
  /// Writes the header of an output file, as item `plan.tensors.size() + file`.
  void run_header(std::uint32_t file);

 private:
  void copy(std::uint32_t item, const PlannedTensor& planned, ItemHashes& hashes);
  void cast(std::uint32_t item, const PlannedTensor& planned, ItemHashes& hashes);
  Hash128 hash_stored(std::uint32_t stored);
  void put(std::uint32_t item, std::uint32_t file, std::uint64_t offset,
           std::span<const std::byte> bytes);

  ItemContext& context_;
  std::vector<std::byte> input_, output_;
};

/// Memory of one runner.
std::uint64_t item_runner_bytes();

}  // namespace ingot::convert
