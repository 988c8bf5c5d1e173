#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "convert/plan/plan.h"
#include "convert/run/window_writer.h"
#include "formats/base/hash.h"
#include "formats/storage/block_scales.h"
#include "shard/align/aligned_part.h"
#include "shard/cut/part_cut.h"

namespace ingot::convert {

struct StageTimes {
  StageTime read, compute, hash;
};

class MomentsFactors;

/// State that all threads of a run share.
struct RunContext {
  const Plan& plan;
  ByteSink& writer;
  StageTimes times;
  std::atomic<std::uint64_t> done_bytes = 0;  ///< output bytes produced, for progress
  std::function<void()> progress;             ///< called per band
  /// Global scales as first written, by tensor; for conversions back (docs/formats.md, "Global
  /// scales").
  std::map<std::string, formats::GlobalScale> original_globals;
  bool lossless_only = false;         ///< ExecuteOptions::lossless_only
  MomentsFactors* factors = nullptr;  ///< factors of tensors whose errors are carried on
};

/// Writes one part of one tensor: takes the bytes of the whole, in order, and puts them wherever
/// the plan wants them: one file, or slices and replicas in the files of many ranks, retiled or
/// padded first if need be. Hashes it slice by slice; slices in files of other parts of the job are
/// hashed and not written.
class PartWriter {
 public:
  PartWriter(RunContext& context, std::uint32_t tensor, std::size_t part);

  /// Memory for the next bytes of the whole, to be filled and committed before the next call: the
  /// output's own where they go to one place in one stretch, else of `spare`, which may grow.
  std::span<std::byte> prepare(std::uint64_t n_bytes, std::vector<std::byte>& spare);
  /// Hashes the prepared bytes, while they are in cache, and hands them over.
  void commit();

  /// Takes the next bytes of the whole.
  void write(std::span<const std::byte> bytes);

  /// Bytes of the whole taken so far.
  [[nodiscard]] std::uint64_t written() const { return written_; }
  /// True if the part has one place and is not cut: its hash is that of the whole.
  [[nodiscard]] bool is_plain() const { return is_plain_; }
  /// Hashes by slice, when every byte was taken: one for a part that is whole everywhere, one per
  /// slice of a cut one, place by place for stacked experts that are shared out.
  std::vector<Hash128> finish();

 private:
  // The place of the part in one row of files, with its cut.
  struct Target {
    const PlannedPlace* place;
    const PlannedFile* file;
    shard::PartCut cut;
    bool is_replica = false;  // of a whole, or of slices, that another place has: hashed there
    formats::TurnedRows turned = {};
  };

  bool lease(std::uint64_t n_bytes);
  void scatter(std::span<const std::byte> bytes);
  void scatter_to(const Target& target, std::uint32_t member, std::span<const std::byte> bytes);
  void put_turned(const Target& target, std::uint32_t file, std::uint64_t begin);
  void hash(TensorHasher& hasher, std::span<const std::byte> bytes);

  RunContext& context_;
  const std::uint32_t tensor_;
  const PlannedPart& part_;
  bool is_plain_ = false;
  std::vector<Target> targets_;
  std::vector<TensorHasher> hashers_;
  std::optional<shard::PartAligner> aligner_;
  std::uint64_t written_ = 0;             // bytes of the whole taken so far
  std::uint64_t scattered_ = 0;           // bytes of the aligned whole put so far
  std::optional<ByteSink::Lease> lease_;  // lease of the prepared bytes
  std::size_t leased_hasher_ = 0;
  std::span<std::byte> prepared_;
  std::vector<std::vector<shard::PartCut::Run>> runs_;  // by slice, of the bytes at hand
  std::vector<std::byte> elsewhere_;  // of a slice that is not written, or not in this order
};

}  // namespace ingot::convert
