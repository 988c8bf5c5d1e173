#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "formats/base/fd.h"
#include "formats/checkpoint/checkpoint.h"

namespace ingot::convert {

/// What the files of a source looked like before the first of them was opened, so that a change
/// while they were read is found before anything is published.
class SourceStamps {
 public:
  /// Stamps every file below a directory; links are followed, hidden folders left out. Folders that
  /// cannot be read are none: opening the source says what is wrong with them.
  void add(const std::filesystem::path& directory);
  /// Forgets the files of a source's directory that nobody reads.
  void keep_files_of(const formats::Checkpoint& source);
  [[nodiscard]] bool empty() const { return files_.empty(); }

  /// Throws kMismatch, naming the file, for one that was written to, replaced or removed.
  void require_unchanged() const;
  /// The same for one file.
  void require_unchanged(const std::filesystem::path& path) const;
  /// This file may go: it was consumed.
  void forget(const std::filesystem::path& path) { files_.erase(path); }

  /// For the journal: from names relative to `directory` to stamps.
  [[nodiscard]] formats::Json to_json(const std::filesystem::path& directory) const;
  /// Names of files that have another stamp, or none, in such a record.
  [[nodiscard]] std::set<std::string> changed_since(const formats::Json& earlier,
                                                    const std::filesystem::path& directory) const;

 private:
  std::map<std::filesystem::path, FileStamp> files_;
};

}  // namespace ingot::convert
