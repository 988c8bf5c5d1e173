#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "shard/join/joined.h"

namespace ingot::shard {

/// Memory that is written before it is read; it grows to the largest of what is taken of it.
class Scratch {
 public:
  std::span<std::byte> take(std::uint64_t n_bytes) {
    if (n_bytes > size_) {
      bytes_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<std::size_t>(n_bytes));
      size_ = n_bytes;
    }
    return {bytes_.get(), static_cast<std::size_t>(n_bytes)};
  }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  std::uint64_t size_ = 0;
};

/// The pieces of one whole, and where their bytes are.
struct PiecesOfWhole {
  const formats::CheckpointFiles& files;
  const std::vector<std::vector<std::uint32_t>>& expert_sets;
  std::span<const JoinedPiece> pieces;
  std::uint64_t expert_bytes = 0;  ///< of one expert in one slice
  std::string_view tensor;         ///< for errors
};

/// Reads slices of one whole from their first holders and, if asked to, compares the others.
class PieceReader {
 public:
  PieceReader(const PiecesOfWhole& whole, bool compare_replicas)
      : whole_(whole), compare_replicas_(compare_replicas) {}

  /// How many experts of a stack, from this one on, stand one behind the other in every piece that
  /// has it, and in no other piece; a large number where every piece has all of them.
  [[nodiscard]] std::uint64_t experts_held_alike(std::uint32_t expert) const;

  /// Bytes of slice number `slice`, from `offset` of it with all experts. In a stack they must be
  /// of experts held alike from `expert` on.
  void fetch(std::uint32_t expert, std::uint32_t slice, std::uint64_t offset,
             std::span<std::byte> out);

 private:
  [[nodiscard]] std::optional<std::uint64_t> offset_in(const JoinedPiece& piece,
                                                       std::uint32_t expert,
                                                       std::uint64_t offset) const;
  template <typename Visit>
  void for_each_portion(const JoinedPiece& piece, std::uint64_t offset, std::uint64_t n_bytes,
                        const Visit& visit);
  void compare(const JoinedPiece& first, const JoinedPiece& piece, std::uint64_t offset,
               std::span<const std::byte> expected);
  void expect_zeros(const JoinedPiece& first, const JoinedPiece& piece, std::uint64_t offset,
                    std::uint64_t n_bytes);
  [[nodiscard]] std::string_view holder(const JoinedPiece& piece) const;

  const PiecesOfWhole whole_;
  bool compare_replicas_;
  Scratch other_;
};

}  // namespace ingot::shard
