#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "formats/base/fd.h"

namespace ingot {

/// The path without a trailing separator, with links resolved as far as it exists.
std::filesystem::path resolved_path(const std::filesystem::path& path);

// The standard library's iterators name no folder in their errors, and end the program where they
// get no memory.

/// Names of a folder's entries, sorted; none, with `failure`, where it cannot be read.
std::vector<std::string> names_in(const std::filesystem::path& folder, std::error_code& failure);
/// Visits the entries of a folder, sorted by name, and of each one below it that is no link, a
/// folder before what is in it. `visit` returns false for a folder into which it does not lead.
/// Returns the first failure; folders that can be read are visited also after it.
std::error_code visit_below(
    const std::filesystem::path& folder,
    const std::function<bool(const std::filesystem::directory_entry&)>& visit);
/// Entries of a folder, sorted by name. Throws kIo or kNotFound where it cannot be read.
std::vector<std::filesystem::directory_entry> entries_in(const std::filesystem::path& folder);
/// Entries of a folder and of all below it, as visit_below() visits them. Throws as entries_in().
std::vector<std::filesystem::directory_entry> entries_below(const std::filesystem::path& folder);

/// A folder, by its descriptor. Names are relative to it, and never lead over a symbolic link or
/// into another mount. So files outside the folder are never written, emptied or removed. All
/// functions throw kExists, with the path, where a link or a mount is in the way.
class Folder {
 public:
  /// The folder that a path leads to, over whatever links it has.
  static Folder open(const std::filesystem::path& path);
  /// The folder of this name; makes those that are missing.
  [[nodiscard]] Folder make(const std::filesystem::path& name) const;
  /// nullopt when it is missing.
  [[nodiscard]] std::optional<Folder> find(const std::filesystem::path& name) const;

  /// Makes a file; an invalid Fd when something of this name is there.
  [[nodiscard]] Fd create(const std::filesystem::path& name, int flags) const;
  /// Makes a file in place of any of this name: no write reaches the old one.
  [[nodiscard]] Fd replace(const std::filesystem::path& name, int flags) const;
  /// Opens a file that is here, to be written to. Throws kExists too when it has other names (hard
  /// links), which would be written to as well.
  [[nodiscard]] Fd open(const std::filesystem::path& name, int flags) const;
  /// The stamp of the entry of this name, be it a link; nullopt when there is none.
  [[nodiscard]] std::optional<FileStamp> stamp(const std::filesystem::path& name) const;
  /// True if the entry of this name is another mount, of a folder or of one file.
  [[nodiscard]] bool is_mount(const std::filesystem::path& name) const;
  /// How many names (hard links) a file has, this one included; 0 when there is no such file.
  [[nodiscard]] std::uint64_t n_links(const std::filesystem::path& name) const;

  void rename(const std::filesystem::path& from, const Folder& folder,
              const std::filesystem::path& to) const;
  /// Removes a file, a link or an empty folder, if there is one.
  void remove(const std::filesystem::path& name) const;
  /// Removes the entry of this name with everything in it, if there is one.
  void remove_all(const std::filesystem::path& name) const;

  [[nodiscard]] const std::string& path() const { return fd_.path(); }

 private:
  explicit Folder(Fd fd) : fd_(std::move(fd)) {}
  /// The folder of one name directly in this one; nullopt when it is missing.
  [[nodiscard]] std::optional<Folder> step(const std::string& name) const;
  /// The entry of this name, be it a link; nullopt when there is none.
  [[nodiscard]] std::optional<Fd> entry(const std::filesystem::path& name) const;
  /// The folder that holds this name.
  [[nodiscard]] Folder holder_of(const std::filesystem::path& name) const;
  [[nodiscard]] std::string path_of(const std::filesystem::path& name) const;

  Fd fd_;  // O_PATH: a folder that may not be read can still be written to
};

}  // namespace ingot
