#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "convert/plan/plan.h"
#include "convert/run/memory/encoded_sets.h"
#include "formats/checkpoint/checkpoint.h"

// A plan's output without an output: a model that is read as if it were converted.

namespace ingot::convert {

/// The bytes of a plan's files, encoded when they are read: what execution would write. A set of
/// tensors that share a scale is encoded at the first read of any of its bytes, and kept until all
/// of them were read once, or until newer sets need the room. Copies are read where they are. Safe
/// from many threads.
class ConvertedBytes {
 public:
  /// The plan must outlive it. Throws kUnsupported for a plan that cuts tensors.
  explicit ConvertedBytes(const Plan& plan, std::size_t threads);

  /// Fills `out` with bytes of Plan::files[file] from `offset`, behind its header.
  void read(std::uint32_t file, std::uint64_t offset, std::span<std::byte> out);
  /// Memory that it takes at most, in bytes.
  [[nodiscard]] std::uint64_t memory() const;

 private:
  struct Piece {
    std::uint64_t offset = 0, n_bytes = 0;
    std::uint32_t tensor = 0;  // of the plan; kNone: a constant
    std::uint32_t part = 0;    // or the number of a constant
  };
  struct Held {
    std::mutex mutex;  // guards `parts` while they are made
    std::vector<std::vector<std::byte>> parts;
    std::uint64_t n_bytes = 0, n_unread = 0, last_use = 0;
  };

  void read(const Piece& piece, std::uint64_t offset, std::span<std::byte> out);
  std::shared_ptr<Held> held(std::uint32_t set);
  void count_read(std::uint32_t set, const std::shared_ptr<Held>& held, std::uint64_t n_bytes);

  const Plan& plan_;
  const std::size_t threads_;
  EncodedSets encoder_;
  std::vector<std::vector<Piece>> files_;  // pieces by file, ascending
  /// By tensor of the plan: its set, and the number of its first part there.
  std::vector<std::uint32_t> set_of_, first_part_;
  std::vector<std::vector<std::uint32_t>> sets_;
  std::vector<std::uint64_t> set_bytes_;
  std::mutex mutex_;  // guards what follows
  std::map<std::uint32_t, std::shared_ptr<Held>> held_;
  std::uint64_t n_held_ = 0, n_uses_ = 0;
};

/// The output of a plan as a checkpoint that can be read, with bytes of `bytes`. The plan, its
/// source and the bytes must outlive it.
formats::Checkpoint converted_checkpoint(const Plan& plan, ConvertedBytes& bytes,
                                         std::size_t threads);

}  // namespace ingot::convert
