#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/base/error.h"
#include "shard/join/joined.h"

namespace ingot::shard {

/// A stored tensor of a file, and which part of which whole it is.
struct FoundSlice {
  std::string name;        ///< name of the whole
  std::uint32_t kind = 0;  ///< SliceJoin::kind
  std::uint32_t file = 0;
  std::uint64_t offset = 0;  ///< absolute, in that file
  std::string home_file;     ///< weights file in the unsliced checkpoint; may be empty
  std::uint64_t stride = 0;  ///< JoinedPiece::stride
};

/// The joined slices of a model.
struct JoinedModel {
  std::vector<formats::StoredTensor> stored;  ///< whole, by the place of their first slice
  JoinedSlices slices;                        ///< `tensors` parallel to `stored`
};

/// Groups slices by the name of their whole. The result depends only on the slices, not on the
/// order or the threads in which they come.
class SliceJoin {
 public:
  SliceJoin();

  /// Adds a file and returns its index, and whether it is new: hard links to one file share an
  /// index, and the rank that has it first is its `holder`. Throws kNotFound or kIo for one that is
  /// not here, kMismatch for one of another size than `n_bytes`, where that is known. Files come
  /// before all slices.
  std::pair<std::uint32_t, bool> add_file(const std::filesystem::path& path, std::string name,
                                          std::optional<std::uint64_t> n_bytes,
                                          std::uint32_t holder);

  /// Facts of a file that its header told. Safe from several threads for different files.
  void set_facts(std::uint32_t file, std::uint64_t n_bytes, std::uint64_t data_start);
  [[nodiscard]] const formats::WeightsFile& file(std::uint32_t index) const {
    return slices_.files[index];
  }
  /// The number of a kind of slices; equal slices share it. Safe from several threads, as add() is.
  std::uint32_t kind(const PlacedSlice& placed);
  void add(std::span<const FoundSlice> found);

  /// Throws, collected: kDuplicate for a tensor that a holder has twice; kMismatch for slices of
  /// one tensor that were not cut alike, or that do not make up the whole.
  /// With `gives_dimensions`, INT4 weights whose files leave out their dimensions get them.
  JoinedModel finish(bool gives_dimensions = false);

 private:
  struct Whole {
    std::string name;
    std::vector<JoinedPiece> pieces;
  };

  [[nodiscard]] const PlacedSlice& kind_of(const JoinedPiece& piece) const {
    return slices_.kinds[piece.kind];
  }
  std::uint32_t whole_index(const std::string& name);
  std::uint32_t home_index(const std::string& home);
  /// Sorts the pieces; reports when they do not make up one whole.
  void complete(Whole& whole, ErrorList& faults) const;
  [[nodiscard]] std::string missing_part(const Whole& whole) const;

  std::mutex mutex_;
  JoinedSlices slices_;
  std::vector<std::uint32_t> holders_;  // holder of each file
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint32_t> by_inode_;
  std::vector<Whole> wholes_;
  std::unordered_map<std::string, std::uint32_t> by_name_, by_home_, by_kind_;
  std::uint32_t last_home_ = 0, next_whole_ = 0;
};

}  // namespace ingot::shard
