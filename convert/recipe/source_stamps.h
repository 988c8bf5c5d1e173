#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "formats/base/fd.h"
#include "formats/checkpoint/checkpoint.h"

namespace ingot::convert {

/// A file and its stamp when it was opened.
struct StampedFile {
  std::filesystem::path path;
  FileStamp stamp;
};

/// The purpose of a file that a conversion reads: its source, or a file that one of its options
/// names.
enum class ReadFor : std::uint8_t { kSource, kOption };

/// Stamps of the files that a conversion reads, made before the first of them was opened, so that a
/// change while they were read is found before anything is published.
class SourceStamps {
 public:
  /// Stamps every file below a directory; links are followed, hidden folders left out. Folders that
  /// cannot be read are none: opening the source reports their faults.
  void add(const std::filesystem::path& directory, ReadFor reader = ReadFor::kSource);
  /// A file that an option names.
  void add(const StampedFile& file) { files_[file.path] = {file.stamp, ReadFor::kOption}; }
  /// Forgets the files in a checkpoint's directory that are not read: side files are, but only the
  /// source's.
  void keep_files_of(const formats::Checkpoint& checkpoint);
  [[nodiscard]] bool empty() const { return files_.empty(); }
  /// This job makes and removes links to the files, which changes their st_ctim.
  void expect_links() { has_links_ = true; }

  /// Throws kMismatch, naming the file, for one that was written to, replaced or removed.
  void require_unchanged() const;
  /// Throws kMismatch, as above, for one file.
  void require_unchanged(const std::filesystem::path& path) const;
  /// This file may go: it was consumed.
  void forget(const std::filesystem::path& path) { files_.erase(path); }

  /// For the journal: from names relative to `directory` to stamps.
  [[nodiscard]] formats::Json to_json(const std::filesystem::path& directory) const;
  struct Changes {
    std::set<std::string> of_source;  ///< names of its files
    bool of_options = false;          ///< some file that an option names
  };
  /// Files that have another stamp, or none, in such a record.
  [[nodiscard]] Changes changed_since(const formats::Json& earlier,
                                      const std::filesystem::path& directory) const;

 private:
  struct Entry {
    FileStamp stamp;
    ReadFor reader = ReadFor::kSource;
  };
  std::map<std::filesystem::path, Entry> files_;
  bool has_links_ = false;
};

}  // namespace ingot::convert
