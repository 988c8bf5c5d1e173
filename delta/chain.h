#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "delta/stream.h"
#include "delta/weights.h"

namespace ingot::delta {

/// The versions that lead from a base to the last of those that were given.
struct Chain {
  std::uint64_t from = 0, to = 0;  ///< equal: the base holds the last one
  std::optional<Version> full;     ///< newest full version among them, in place of the base
  std::vector<Version> deltas;     ///< deltas behind it, in order

  [[nodiscard]] bool is_empty() const { return from == to; }
  /// True if every tensor of the base is compared with a digest that a delta of ours recorded.
  [[nodiscard]] bool has_record() const;
};

/// Finds the versions, which are opened. Each of `given` is a stream, of which every version behind
/// the base's counts, or a directory of one version; these ascend. Throws kMismatch where a version
/// is on another one than those that are here.
Chain open_chain(const std::filesystem::path& base, std::span<const std::filesystem::path> given);

/// A tensor after the last version.
struct TensorState {
  std::uint64_t version = 0;  ///< version that changed it last; that of the base for none
  std::string checksum;       ///< text of that version's checksum; empty for none
};

/// A piece of a tensor: `before` the first version, and `after` the last.
struct TensorPiece {
  std::size_t worker = 0;
  const formats::StoredTensor* tensor = nullptr;
  std::uint64_t offset = 0;  ///< within the tensor
  std::span<const std::byte> before, after;
  bool is_patched = false;  ///< true: some version has a payload of the tensor
};

/// Applies a chain to the tensors of `base` in memory, piece by piece, and holds every state of
/// every tensor to what the versions say of it.
class ChainReader {
 public:
  /// Throws where a delta is of other tensors than the base's.
  ChainReader(const Chain& chain, const Weights& base);

  [[nodiscard]] bool is_changed(const formats::StoredTensor& tensor) const;
  /// True for each file in which a tensor is changed.
  [[nodiscard]] const std::vector<bool>& changed_files() const { return changed_files_; }
  /// Bytes that run() reads.
  [[nodiscard]] std::uint64_t n_read(const std::function<bool(std::uint32_t)>& wants_file) const;

  /// The first file that is the same one on disk, if its tensors become the same bytes under all of
  /// its names; else the file itself.
  [[nodiscard]] std::uint32_t leader_of(std::uint32_t file) const { return leaders_[file]; }

  /// Reads changed tensors, all where a delta has our record, and those of files that are wanted;
  /// none in files with leaders.
  /// `look` gets the pieces of a tensor in order, on one of `threads` threads. Throws kMismatch
  /// (another base, or a damaged delta) and kCorrupt after pieces of the tensor were looked at.
  /// Returns the states, by the index of the tensor.
  std::vector<TensorState> run(std::size_t threads,
                               const std::function<bool(std::uint32_t)>& wants_file,
                               const std::function<void(const TensorPiece&)>& look,
                               const std::function<void(std::uint64_t)>& progress) const;

 private:
  struct Stage;
  [[nodiscard]] bool is_read(const formats::StoredTensor& tensor,
                             const std::function<bool(std::uint32_t)>& wants_file) const;
  void find_leaders();
  TensorState run_tensor(std::uint32_t index, std::size_t worker,
                         const std::function<void(const TensorPiece&)>& look,
                         const std::function<void(std::uint64_t)>& progress) const;

  const Chain& chain_;
  const Weights& base_;
  std::vector<bool> changed_, changed_files_;
  std::vector<std::uint32_t> leaders_;
};

}  // namespace ingot::delta
