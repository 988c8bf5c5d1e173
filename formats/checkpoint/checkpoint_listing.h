#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "formats/base/error.h"
#include "formats/base/foreign_files.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/container/checkpoint_index.h"

namespace ingot::formats {

inline constexpr std::string_view kConfigName = "config.json";
/// The file in .ingot-partial of a checkpoint whose files are changed in their place
/// (delta/journal.h).
inline constexpr std::string_view kDeltaJournalName = "delta.json";
/// The remedy for an index of other files.
inline constexpr std::string_view kIndexRemedy =
    "where all weights are here, ingot repair makes the index again";

/// Throws unless `directory` is one: kNotFound, kInvalidArgument, or kUnsupported for a file of
/// weights in another format.
void require_directory(const std::filesystem::path& directory);
/// Throws, too, for the place of a conversion that has not ended (kExists).
void require_finished_directory(const std::filesystem::path& directory);

/// Throws kNotFound, once, where files of the directory are links to nothing, as in a snapshot of
/// the hub's cache that was copied without its blobs. For a snapshot in its place others tell what
/// to fetch.
void require_links(const std::filesystem::path& directory);

/// The most that config.json and other small JSON files of a checkpoint may have.
inline constexpr std::uint64_t kMaxConfigBytes = 32'000'000;

/// The text of config.json. Without one: nullopt where it may be missing, else kNotFound.
std::optional<std::string> read_config(const std::filesystem::path& directory, bool may_be_missing);

/// The dialect's description file, an object; null when the dialect has none or it is not here:
/// config.json may say it all. Errors name it as it is called (`bare`), or by its path.
Json read_description(const std::filesystem::path& directory, const Dialect& dialect,
                      bool bare = true);

/// Bare names of files here that are a checkpoint's wherever they lie: weights that the index
/// names, or that are called as loaders expect, the index, configs and ingot's own files. Faults of
/// the index are not told.
std::set<std::string> checkpoint_names(const std::filesystem::path& directory);

/// Entries of the index kIndexName other than its map; the default where there is none.
IndexFrame read_index_frame(const std::filesystem::path& directory);

/// Bare names of a directory's entries, sorted.
std::vector<std::string> list_file_names(const std::filesystem::path& directory);

/// Files next to the weights, sorted by path.
struct SideListing {
  std::vector<SideFile> files;
  std::vector<LeftOut> left_out;  ///< weights in folders, and files by left_out_reason()
};

/// Symbolic links to files count as files, links to directories are not entered; directories whose
/// names begin with a dot are passed over in silence.
SideListing list_side_files(const std::filesystem::path& directory, ErrorList& faults);

}  // namespace ingot::formats
