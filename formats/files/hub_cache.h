#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

// The folder in which programs of the hub keep the models that they fetched:
// models--ORG--NAME/{blobs,refs/REVISION,snapshots/COMMIT}. A ref is a text, the commit; the files
// of a snapshot are links to blobs. docs/commands.md says how the program finds it.

namespace ingot::formats {

/// A model on the hub, as `ORG/NAME` or `ORG/NAME@REVISION`: a branch, tag or commit.
struct HubName {
  std::string model;  ///< ORG/NAME
  std::string revision = "main";
};
/// A text that could be the name of a model on the hub, or nullopt.
std::optional<HubName> parse_hub_name(std::string_view text);

/// The snapshot of a model in a cache, or nullopt where the cache has no folder of that model.
/// Throws kNotFound, with the snapshots that are here, for a revision that is not.
std::optional<std::filesystem::path> find_hub_snapshot(const std::filesystem::path& cache,
                                                       const HubName& name);

/// The directory that holds the checkpoint: for a model's folder in the hub's cache
/// (`models--ORG--NAME`) the snapshot that its refs/main names, else `directory` itself. Throws
/// kNotFound, with the snapshots that are here, when refs/main names none of them.
std::filesystem::path checkpoint_directory(const std::filesystem::path& directory);

/// A directory of the cache that holds a checkpoint.
struct HubSnapshot {
  std::string model;  ///< ORG/NAME
  std::string commit;
};
/// Returns the snapshot if a directory is one, by its path with links resolved; else nullopt.
std::optional<HubSnapshot> hub_snapshot_at(const std::filesystem::path& directory);

/// The remedy for files that a snapshot lacks: a command that fetches them. Nullopt for any other
/// directory.
std::optional<std::string> hub_fetch(const std::filesystem::path& directory);

/// The folder of a model, data set or space of the hub's cache that keeps a path, links resolved as
/// far as it exists, or nullopt: paths in its `snapshots` and `blobs`. With `is_whole` also the
/// folder itself and all else in it.
std::optional<std::filesystem::path> hub_folder_around(const std::filesystem::path& path,
                                                       bool is_whole = false);

}  // namespace ingot::formats
