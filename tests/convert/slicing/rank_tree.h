#pragma once

#include <sys/stat.h>

#include "check/check.h"
#include "formats/records/manifest.h"
#include "tests/convert/slicing/sliced.h"
#include "tests/support/test.h"

namespace ingot::testing {

/// Weights files of a directory, sorted.
inline std::vector<std::string> weights_of(const std::filesystem::path& directory) {
  std::vector<std::string> names = top_level(directory);
  std::erase_if(names, [](const std::string& name) { return !name.ends_with(".safetensors"); });
  return names;
}

/// Names of its stored tensors.
inline std::set<std::string> names_in(const std::filesystem::path& directory) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : read_output(directory)) names.insert(name);
  return names;
}

/// The identity of a file on the disk, whatever its names.
inline std::uint64_t inode_of(const std::filesystem::path& path) {
  struct stat info = {};
  EXPECT_EQ(::stat(path.c_str(), &info), 0) << path;
  return info.st_ino;
}

/// The record of a rank in its own manifest.
inline formats::RankRecord record_of_rank(const std::filesystem::path& rank) {
  const auto manifest = formats::read_manifest(rank);
  if (!manifest || !manifest->slicing || !manifest->slicing->rank) {
    ADD_FAILURE() << rank << " is no rank";
    return {};
  }
  return *manifest->slicing->rank;
}

inline std::vector<std::filesystem::path> rank_directories(const std::filesystem::path& top,
                                                           const Cut& cut) {
  std::vector<std::filesystem::path> all;
  for (std::uint32_t rank = 0; rank < cut.options().slicing.topology.n_ranks(); ++rank)
    all.push_back(rank_directory(top, rank, cut));
  return all;
}

/// Nothing that a loader would refuse, and every hash as the manifest says.
inline void expect_accepted(const std::filesystem::path& directory) {
  for (const check::Finding& finding : check::check_checkpoint(directory, {}).findings) {
    if (finding.severity != check::Severity::kError) continue;
    ADD_FAILURE() << directory << ": " << finding.rule << ' ' << finding.file << ' '
                  << finding.tensor << ' ' << finding.message;
  }
}

/// The same of every rank's directory, each by itself in another place.
inline void expect_each_accepted_alone(const std::filesystem::path& top, const Cut& cut) {
  for (const std::filesystem::path& rank : rank_directories(top, cut)) {
    const TempDir elsewhere;
    std::filesystem::copy(rank, elsewhere / "node", std::filesystem::copy_options::recursive);
    expect_accepted(elsewhere / "node");
  }
}

}  // namespace ingot::testing
