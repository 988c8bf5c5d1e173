#pragma once

#include <cstddef>
#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/base/error.h"
#include "formats/base/foreign_files.h"
#include "formats/base/pattern.h"
#include "formats/checkpoint/checkpoint_files.h"
#include "formats/container/checkpoint_index.h"
#include "formats/family/family.h"
#include "formats/storage/stored_bytes.h"
#include "formats/storage/stored_names.h"

// The stored tensors of a directory's files, and how far names and index agree with them.

namespace ingot::formats {

/// The places that files of a directory are read from: itself, or saved headers of files that are
/// gone.
std::vector<WeightsFile> locate_files(const std::vector<std::string>& names,
                                      const std::filesystem::path& directory,
                                      const std::filesystem::path& consumed_headers);

/// Reads every header and completes the files' facts. A file that cannot be read is reported and
/// has no tensors. In source order: by file, then by offset.
std::vector<StoredTensor> read_headers(std::vector<WeightsFile>& files, std::size_t threads,
                                       ErrorList& faults);

/// Facts that decide which file's copy of a tensor is used.
struct CopyChoice {
  const CheckpointIndex* index = nullptr;  ///< null without an index
  const StoredBytes* bytes = nullptr;      ///< null where they cannot be read yet
  bool merges_equal = false;               ///< true: copies with the same bytes become one
  /// Names of which the file that the index names has the right copy.
  const std::vector<Pattern>* by_index = nullptr;
};

/// Leaves one tensor of each name: the one in the file that the index names, else the first.
/// Reports the names that several had (kDuplicate), unless `choice` says that one was meant; then
/// it remarks on them. For a report, few bytes are compared; to merge, all. `names` are those of
/// `stored`, before and afterwards.
void settle_copies(const CopyChoice& choice, std::span<const SourceFile> files,
                   std::vector<StoredTensor>& stored, StoredNames& names,
                   std::vector<std::string>& remarks, ErrorList& faults);

/// Reports tensors that the index names and the files lack, and the reverse. Files that could not
/// be read have been reported and are passed over. `files` are sorted by name.
void check_index(const CheckpointIndex& index, std::span<const StoredTensor> stored,
                 const StoredNames& names, std::span<const SourceFile> files, ErrorList& faults);

/// Names of the files that are here, but whose headers could not be read.
std::set<std::string_view> unreadable_files(std::span<const SourceFile> files);

/// Names of tensors that the index gives to files which are not here or could not be read, sorted.
std::vector<std::string> lost_names(const CheckpointIndex& index,
                                    std::span<const SourceFile> files);

/// A checkpoint by its index, to judge weights files that the index does not name.
struct StrayCheck {
  const std::filesystem::path& directory;
  const Family& family;
  const ModelConfig& config;
  std::span<const StoredTensor> stored;
  const StoredNames& names;
  std::string_view index_name;  ///< empty without an index
};

/// Judges weights files that belong to no file list. A file with a tensor of this model that no
/// other file has means that the index is out of date: kMissingTensor. Any other file (the weights
/// once more, other names, an adapter, or one that cannot be read) is left out.
void settle_strays(const StrayCheck& check, const std::vector<std::string>& files,
                   std::vector<LeftOut>& left_out, ErrorList& faults);

}  // namespace ingot::formats
