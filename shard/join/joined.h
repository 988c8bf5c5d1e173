#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "formats/checkpoint/checkpoint_files.h"
#include "formats/storage/stored_bytes.h"
#include "shard/join/placed_slice.h"

namespace ingot::shard {

/// A stored tensor of one file, as a slice of a whole.
struct JoinedPiece {
  std::uint32_t file = 0;    ///< index into JoinedSlices::files
  std::uint32_t kind = 0;    ///< index into JoinedSlices::kinds
  std::uint32_t home = 0;    ///< index into JoinedSlices::homes
  std::uint64_t offset = 0;  ///< absolute, in that file
  std::uint64_t stride = 0;  ///< TurnedRows::stride
};

/// A whole: pieces that make it up, replicas included.
struct JoinedTensor {
  std::uint32_t first_piece = 0;  ///< first of `n_pieces`: zeroed ones last, then by slice and file
  std::uint32_t n_pieces = 0;
  bool is_stack = false;  ///< pieces may hold some experts of the first dimension
};

/// Slices that have been found to make up wholes (SliceJoin).
struct JoinedSlices {
  std::vector<formats::WeightsFile> files;  ///< files; hard links to one file are one entry
  std::vector<PlacedSlice> kinds;           ///< a few hundred, which all pieces share
  std::vector<JoinedPiece> pieces;
  std::vector<JoinedTensor> tensors;
  std::vector<std::string> homes;  ///< weights files of the unsliced checkpoint; the first is empty
  /// Shapes of weights whose slices have their own, by index into `tensors`.
  std::unordered_map<std::uint32_t, formats::Shape> dimensions;
};

/// Stored tensors gathered from the slices of several ranks, lazily. A read takes the stretch of
/// each slice that it covers, puts the bytes in the order of the whole and leaves padding and
/// repeated scales out; at most a few MiB at a time, whatever the size of the read.
class JoinedBytes final : public formats::StoredBytes {
 public:
  /// With `compare_replicas` every other holder of the bytes is read too, and a difference is
  /// kMismatch naming tensor and holders.
  JoinedBytes(JoinedSlices slices, bool compare_replicas);

  [[nodiscard]] std::span<const formats::SourceFile> files() const override {
    return files_.files();
  }
  void read(std::uint32_t index, const formats::StoredTensor& tensor, std::uint64_t offset,
            std::span<std::byte> out) const override;
  [[nodiscard]] std::vector<std::byte> header_bytes(std::uint32_t file) const override {
    return files_.header_bytes(file);
  }
  [[nodiscard]] bool has_data(std::uint32_t /*file*/) const override { return true; }
  void read_file(std::uint32_t file, std::uint64_t offset,
                 std::span<std::byte> out) const override {
    files_.read_file(file, offset, out);
  }
  void close_file(std::uint32_t file) const override { files_.close_file(file); }
  [[nodiscard]] bool is_whole() const override { return false; }
  [[nodiscard]] std::string home_file(std::uint32_t index) const override;
  [[nodiscard]] const formats::CheckpointFiles* on_disk() const override { return &files_; }
  /// False when each byte of a tensor is in only one file; true for every stack that is dealt by
  /// experts.
  [[nodiscard]] bool may_have_replicas(std::uint32_t index) const;

 private:
  class Reading;
  [[nodiscard]] std::span<const JoinedPiece> pieces_of(const JoinedTensor& joined) const;

  JoinedSlices slices_;  // slices, without their open files
  formats::CheckpointFiles files_;
  bool compare_replicas_;
};

}  // namespace ingot::shard
