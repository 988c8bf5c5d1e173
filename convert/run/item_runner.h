#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "convert/output/tensor_result.h"
#include "convert/plan/plan.h"
#include "convert/run/stage_timer.h"
#include "convert/run/window_writer.h"
#include "formats/storage/block_scales.h"

namespace ingot::convert {

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
  /// The reduction over a group, where an earlier run has left it in the journal.
  std::function<std::optional<float>(std::uint32_t group)> known_amax;
  /// Global scales as first written, by tensor; for conversions back (docs/formats.md, "Global
  /// scales").
  const std::map<std::string, formats::GlobalScale>& original_globals;
  std::uint64_t group_bytes = 0;  ///< of a group's codes kept between its two passes
};

/// Runs items on one thread: reads, converts and hands to the writer, band by band. Its buffers are
/// item_runner_bytes() long in all.
class ItemRunner {
 public:
  explicit ItemRunner(ItemContext& context);

  /// Called with each tensor when all its bytes are committed.
  using Finished = std::function<void(std::uint32_t tensor, ItemRecord record)>;
  /// Converts or copies tensors of the plan: one, or those of one group that are not done yet.
  /// Throws kBadScale or kNonFinite, naming file and tensor, for values that no allowance covers.
  void run(std::span<const std::uint32_t> item, const Finished& finished);
  /// Writes the header of an output file, as item `plan.tensors.size() + file`.
  void run_header(std::uint32_t file);

 private:
  friend class TensorEncoder;
  friend class TensorRewrapper;

  /// Hashes of a part that was copied: of the whole, and of what was written, by slice.
  struct CopiedPart {
    Hash128 source;
    std::vector<Hash128> output;
  };

  ItemRecord run_tensor(std::uint32_t item, std::optional<float> amax);
  float reduce(std::uint32_t group);
  ItemRecord copy(std::uint32_t item);
  ItemRecord cast(std::uint32_t item);

  using Look = std::function<void(std::span<const std::byte>)>;
  /// Copies stored bytes into the output; `look` sees every piece, in order.
  CopiedPart copy_part(std::uint32_t item, std::size_t part, std::uint32_t stored,
                       const Look& look = {});
  /// The same for the codes of a tensor, of which none may be a NaN unless that is allowed.
  CopiedPart copy_codes(std::uint32_t item, std::size_t part, const Look& look = {});
  /// Hashes of the stored parts of a tensor but its codes, which come first in the result.
  std::vector<Hash128> hash_sources(const formats::LogicalTensor& tensor, Hash128 weight);
  Hash128 hash_stored(std::uint32_t stored);
  /// Hands bytes of an output file to the writer.
  void put(std::uint32_t item, std::uint32_t member, std::uint64_t offset,
           std::span<const std::byte> bytes);
  /// Stored bytes of a tensor's codes: from the buffer of its group, else read into `buffer`.
  std::span<const std::byte> read_codes(const formats::LogicalTensor& tensor, std::uint64_t offset,
                                        std::span<std::byte> buffer);
  formats::ScalePolicy scale_policy(const formats::LogicalTensor& tensor) const;
  void name_source(Error& error, const formats::LogicalTensor& tensor) const;
  static Error nan_code(const formats::LogicalTensor& tensor, std::uint64_t row, std::uint64_t col);
  /// Scales are judged even where the bytes are only copied: a checkpoint with a zero or infinite
  /// scale is broken whatever is done with it. Throws kBadScale, also when the output promises
  /// powers of two and FP8 scales are others.
  void judge_scales(const formats::LogicalTensor& tensor, const formats::ScaleReader& scales) const;
  void require_claimed_scales(const formats::LogicalTensor& tensor,
                              std::span<const float> scales) const;

  ItemContext& context_;
  std::vector<std::byte> input_, output_;
  std::vector<float> values_, decoded_;
  // Codes of the group at hand, kept from its first pass to its second, and where each stored
  // tensor stands among them.
  std::vector<std::byte> group_codes_;
  std::map<std::uint32_t, std::span<const std::byte>> kept_;
};

/// Memory of one runner, less what it keeps of a group.
std::uint64_t item_runner_bytes(const Plan& plan);

}  // namespace ingot::convert
