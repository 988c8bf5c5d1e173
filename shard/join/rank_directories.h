#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "formats/records/manifest.h"

namespace ingot::shard {

/// One rank of a sliced checkpoint of layout `ranks`.
struct RankDirectory {
  std::string name;  ///< `rank-00003-of-00016`
  std::filesystem::path path;
  formats::Manifest manifest;  ///< `slicing->rank` is there
};

/// Names of the rank directories in a directory, sorted.
std::vector<std::string> rank_directories_in(const std::filesystem::path& directory);

/// The ranks of a sliced checkpoint, in order, once their manifests have been found to agree with
/// the top one (`top`, null where a user gathered the directories) and with each other. Throws,
/// collected: kNotFound for ranks that are missing, kMismatch for manifests of another conversion,
/// of another topology, or that the top one does not know.
std::vector<RankDirectory> find_ranks(const std::filesystem::path& directory,
                                      const formats::Manifest* top, std::size_t threads);

/// The model that the ranks hold together; reads headers and records.
formats::Draft join_ranks(std::vector<RankDirectory> ranks, bool compare_replicas,
                          const formats::OpenOptions& options);

}  // namespace ingot::shard
