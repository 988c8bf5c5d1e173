#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/base/fd.h"
#include "formats/base/hash.h"
#include "formats/checkpoint/checkpoint_files.h"
#include "formats/storage/stored_names.h"

namespace ingot::delta {

/// The weights of a checkpoint as its files hold them: a delta knows no schemes and no dialects.
/// Where ingot cut it for ranks, a name may be in the directory, or the file, of each: there a
/// tensor is called by that, a slash, and its name.
class Weights {
 public:
  /// Reads the headers of the weights files: those that the index names, else all that are here; in
  /// a directory above those of ranks, in each of these. Throws, collected, for what is missing or
  /// malformed, kDuplicate for a name in two files that are not those of ranks, and as
  /// require_finished_directory().
  Weights(const std::filesystem::path& directory, std::size_t threads);

  [[nodiscard]] const std::filesystem::path& directory() const { return directory_; }
  [[nodiscard]] const formats::CheckpointFiles& bytes() const { return *bytes_; }
  [[nodiscard]] std::span<const formats::SourceFile> files() const { return bytes_->files(); }
  [[nodiscard]] std::span<const formats::StoredTensor> stored() const { return stored_; }
  [[nodiscard]] const formats::StoredTensor* find(std::string_view name) const;
  [[nodiscard]] const std::string& file_of(const formats::StoredTensor& tensor) const {
    return files()[tensor.file].name;
  }
  /// Directories of ranks, each with a checkpoint of its own; none where the weights are here.
  [[nodiscard]] std::span<const std::string> folders() const { return folders_; }
  /// The first file that is the same one on disk: ranks share files by hard links. For most files
  /// the file itself.
  [[nodiscard]] std::uint32_t first_of(std::uint32_t file) const { return first_of_[file]; }
  /// Tensor hashes by the names of stored tensors, as the records of ingot's outputs have them.
  /// None without records.
  [[nodiscard]] std::map<std::string, Hash128, std::less<>> recorded_hashes() const;
  [[nodiscard]] std::uint64_t n_bytes() const;  ///< sum over the tensors

 private:
  std::filesystem::path directory_;
  std::vector<std::string> folders_;
  std::vector<std::uint32_t> first_of_;
  bool is_by_file_ = false;  // names have those of their files before them
  std::vector<formats::StoredTensor> stored_;
  std::optional<formats::StoredNames> names_;
  std::optional<formats::CheckpointFiles> bytes_;
};

/// Throws kMismatch where the directory of a rank says to hold another version than `version`.
void require_one_version(const Weights& weights, std::uint64_t version);

/// The other files of a checkpoint that a delta takes along, by their paths: side files, configs,
/// the index and ingot's records; sorted.
std::vector<std::string> extra_names(const Weights& weights);

}  // namespace ingot::delta
