#include <set>

#include <fmt/format.h>

#include "check/manifest_check.h"
#include "check/stored_hashes.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/records/manifest.h"

namespace ingot::formats {
namespace {

constexpr std::string_view kRankPrefix = "rank-";

/// Why a rank's manifest is not the one that is meant, as far as it tells.
std::string reason(const std::filesystem::path& path, const SlicingRecord& slicing,
                   std::size_t rank) {
  try {
    const std::optional<Manifest> manifest = read_manifest(path);
    if (!manifest || !manifest->slicing || !manifest->slicing->rank)
      return "it is not the manifest of a rank: copy this directory again";
    if (manifest->slicing->job != slicing.job)
      return "it is of another conversion: copy this directory again from the one that is meant";
    if (manifest->slicing->rank->rank != rank) {
      return fmt::format("it is that of rank {}: put the directories in their places",
                         manifest->slicing->rank->rank);
    }
  } catch (const Error&) {
    // The check of the rank says what is wrong with it.
  }
  return "changed since it was written: copy this directory again";
}

void check_manifest(const SlicingRecord& slicing, std::size_t rank,
                    const std::filesystem::path& path, CheckResult& result) {
  const RankEntry& entry = slicing.ranks[rank];
  const std::string file = fmt::format("{}/{}", entry.directory, kManifestName);
  collect(result, file, [&] {
    const Hash128 hash = hash_file(path / kManifestName);
    if (hash == entry.manifest_hash) return;
    result.findings.push_back(
        violation(ErrorCode::kMismatch, file, "",
                  fmt::format("has hash {}, the manifest of all ranks says {} ({})", hash.hex(),
                              entry.manifest_hash.hex(), reason(path, slicing, rank))));
  });
}

void check_others(const std::filesystem::path& directory, const SlicingRecord& slicing,
                  CheckResult& result) {
  std::set<std::string_view> listed;
  for (const RankEntry& entry : slicing.ranks) listed.insert(entry.directory);
  for (const std::string& name : list_file_names(directory)) {
    std::error_code failure;
    if (!name.starts_with(kRankPrefix) || listed.contains(name) ||
        !std::filesystem::is_directory(directory / name, failure))
      continue;
    result.findings.push_back(
        violation(ErrorCode::kMismatch, name, "",
                  fmt::format("is not one of the {} directories in {} (move it away)",
                              slicing.ranks.size(), kManifestName)));
  }
}

}  // namespace

void check_ranks(const std::filesystem::path& directory, const SlicingRecord& slicing,
                 const std::function<CheckResult(const std::filesystem::path&)>& check_rank,
                 CheckResult& result) {
  for (std::size_t rank = 0; rank < slicing.ranks.size(); ++rank) {
    const std::string& name = slicing.ranks[rank].directory;
    const std::filesystem::path path = directory / name;
    std::error_code failure;
    if (!std::filesystem::is_directory(path, failure)) {
      result.findings.push_back(
          violation(ErrorCode::kNotFound, name, "",
                    fmt::format("is missing: the directory of rank {} (copy it here, or check the "
                                "others one by one)",
                                rank)));
      continue;
    }
    check_manifest(slicing, rank, path, result);
    CheckResult found;
    collect(found, "", [&] { found = check_rank(path); });
    add_directory(name, path, std::move(found), result);
  }
  check_others(directory, slicing, result);
}

}  // namespace ingot::formats
