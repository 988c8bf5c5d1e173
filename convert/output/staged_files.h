#pragma once

#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "formats/base/fd.h"
#include "formats/base/hash.h"
#include "formats/files/folder.h"

namespace ingot::convert {

/// The files of an output before they have their final names. It remembers which file has each name
/// from the moment when it was made, or found as an earlier run left it; a file that another
/// process put in its place is neither written to nor published. Nothing is written to a file that
/// has other names (hard links), or through a link. Safe from many threads.
class StagedFiles {
 public:
  /// Takes over the files in `folder`. Throws kExists for symbolic links.
  explicit StagedFiles(Folder folder);

  /// Opens a file for reading and writing; creates it when it is not one of ours. One that has
  /// other names is copied first. Throws kExists when another process has made a file of this name.
  Fd open(const std::string& name);
  /// Opens one of ours again, with further open(2) flags. Throws kMismatch when another file is in
  /// its place.
  Fd reopen(const std::string& name, int flags) const;
  /// Makes an empty file, which is ours, in place of any of this name; returns its path.
  std::filesystem::path make(const std::string& name);
  /// Puts a file that lies at `from` here as well: a hard link; where none is wanted or can be
  /// made, a file that shares its blocks; else a copy, and false.
  bool share(const std::filesystem::path& from, const std::string& name, bool link);

  /// Makes the file that has this name now one of ours.
  void take(const std::string& name);
  /// Removes every file but these.
  void drop_but(const std::set<std::string>& names);
  /// Throws kMismatch unless the file of this name is ours.
  void require_ours(const std::string& name) const;

  [[nodiscard]] std::filesystem::path directory() const { return folder_.path(); }

 private:
  /// nullopt for a name that is not ours.
  [[nodiscard]] std::optional<FileStamp> known(const std::string& name) const;

  Folder folder_;
  mutable std::mutex mutex_;
  std::map<std::string, FileStamp> files_;  // as they were when they became ours
};

/// Size and hash of a copy.
struct CopiedFile {
  std::uint64_t n_bytes = 0;
  Hash128 hash;            ///< tensor hash of the bytes
  bool is_shared = false;  ///< true: the file system shares its blocks with those of the original
};

/// Copies a file byte for byte into the one that is made at `to`, durable when this returns.
CopiedFile copy_durably(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace ingot::convert
