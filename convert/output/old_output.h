#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "convert/output/output_directory.h"

// The files of an earlier output, which --force replaces. Its manifests list them; without one,
// files count that have the name of a checkpoint's weights, index or config, or of a file of the
// new output. Everything else is the user's.

namespace ingot::convert {

/// Files by their names in the output, '/'-separated, the folders of an unfinished output apart.
struct OldFiles {
  std::set<std::string> known;    ///< files of the earlier output: may be replaced and removed
  std::set<std::string> unknown;  ///< all other files there: never removed
};

/// Names of all entries of an output that are no folders.
std::set<std::string> output_entries(const OutputPaths& paths);

/// `names`: those of the new output. `begun`: files that an earlier run of this job, or a
/// publication that was cut, has found or put here.
OldFiles find_old_files(const OutputPaths& paths, const std::vector<std::string>& names,
                        const std::set<std::string>& begun);

/// Throws kExists naming the files that are unknown.
void require_no_unknown(const std::set<std::string>& unknown, const std::filesystem::path& output);

/// Removes those of `known` that are here and not among `names`, and folders that are empty then.
/// Manifests go first, also those that a staged one replaces, so that no moment looks finished. May
/// be repeated after a kill.
void remove_old_files(const OutputPaths& paths, const std::vector<std::string>& names,
                      const std::set<std::string>& known);

}  // namespace ingot::convert
