#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "delta/patch.h"
#include "formats/base/fd.h"
#include "formats/checkpoint/checkpoint_files.h"
#include "formats/storage/stored_names.h"

namespace ingot::delta {

/// The weights of a checkpoint as its files hold them: a delta knows no schemes and no dialects.
class Weights {
 public:
  /// Reads the headers of the weights files: those that the index names, else all that are here.
  /// Throws, collected, for what is missing or malformed, kDuplicate for a name in two files (as
  /// slices of ranks have it), and as require_finished_directory().
  Weights(const std::filesystem::path& directory, std::size_t threads);

  [[nodiscard]] const std::filesystem::path& directory() const { return directory_; }
  [[nodiscard]] const formats::CheckpointFiles& bytes() const { return *bytes_; }
  [[nodiscard]] std::span<const formats::SourceFile> files() const { return bytes_->files(); }
  [[nodiscard]] std::span<const formats::StoredTensor> stored() const { return stored_; }
  [[nodiscard]] const formats::StoredTensor* find(std::string_view name) const;
  [[nodiscard]] const std::string& file_of(const formats::StoredTensor& tensor) const {
    return files()[tensor.file].name;
  }
  /// Reads a tensor; it must outlive the function.
  [[nodiscard]] ReadBytes reader(const formats::StoredTensor& tensor) const;
  [[nodiscard]] std::uint64_t n_bytes() const;  ///< sum over the tensors

 private:
  std::filesystem::path directory_;
  std::vector<formats::StoredTensor> stored_;
  std::optional<formats::StoredNames> names_;
  std::optional<formats::CheckpointFiles> bytes_;
};

/// The other files of a checkpoint that a delta takes along, by their paths: side files, configs,
/// the index and ingot's records; sorted.
std::vector<std::string> extra_names(const std::filesystem::path& directory);

}  // namespace ingot::delta
