#include "check/ranks_check.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "check/stored_hashes.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/records/manifest.h"

namespace ingot::formats {
namespace {

constexpr std::string_view kRankPrefix = "rank-";

Finding in_directory(ErrorCode code, const std::string& file, std::string message) {
  return finding_of(Error(code, std::move(message)).in_file(file));
}

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

/// Paths as seen from the top.
void put_behind(const std::string& name, const std::filesystem::path& path, Finding& finding) {
  const std::string prefix = path.string() + "/";
  if (finding.file == path.string()) finding.file.clear();
  if (finding.file.starts_with(prefix)) finding.file.erase(0, prefix.size());
  finding.file = finding.file.empty() ? name : fmt::format("{}/{}", name, finding.file);
}

class RanksCheck {
 public:
  RanksCheck(const std::filesystem::path& directory, const SlicingRecord& slicing,
             const std::function<CheckResult(const std::filesystem::path&)>& check_rank,
             CheckResult& result)
      : directory_(directory), slicing_(slicing), check_rank_(check_rank), result_(result) {}

  void rank(std::size_t number) {
    const RankEntry& entry = slicing_.ranks[number];
    const std::filesystem::path path = directory_ / entry.directory;
    std::error_code failure;
    if (!std::filesystem::is_directory(path, failure)) {
      add(in_directory(ErrorCode::kNotFound, entry.directory,
                       fmt::format("is missing: the directory of rank {} (copy it here, or check "
                                   "the others one by one)",
                                   number)));
      return;
    }
    manifest(number, path);
    try {
      CheckResult found = check_rank_(path);
      result_.n_files += found.n_files;
      result_.n_tensors += found.n_tensors;
      result_.n_bytes += found.n_bytes;
      result_.n_hashed += found.n_hashed;
      for (Finding& finding : found.findings) {
        put_behind(entry.directory, path, finding);
        add(std::move(finding));
      }
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInterrupted) throw;
      Finding finding = finding_of(error);
      put_behind(entry.directory, path, finding);
      add(std::move(finding));
    }
  }

  void others() {
    std::set<std::string_view> listed;
    for (const RankEntry& entry : slicing_.ranks) listed.insert(entry.directory);
    for (const std::string& name : list_file_names(directory_)) {
      std::error_code failure;
      if (!name.starts_with(kRankPrefix) || listed.contains(name) ||
          !std::filesystem::is_directory(directory_ / name, failure))
        continue;
      add(in_directory(ErrorCode::kMismatch, name,
                       fmt::format("is not one of the {} directories in {} (move it away)",
                                   slicing_.ranks.size(), kManifestName)));
    }
  }

 private:
  void add(Finding finding) { result_.findings.push_back(std::move(finding)); }

  void manifest(std::size_t number, const std::filesystem::path& path) {
    const RankEntry& entry = slicing_.ranks[number];
    const std::string file = fmt::format("{}/{}", entry.directory, kManifestName);
    try {
      const Hash128 hash = hash_file(path / kManifestName);
      if (hash == entry.manifest_hash) return;
      add(in_directory(
          ErrorCode::kMismatch, file,
          fmt::format("has hash {}, the manifest of all ranks says {} ({})", hash.hex(),
                      entry.manifest_hash.hex(), reason(path, slicing_, number))));
    } catch (const Error& error) {
      Finding finding = finding_of(error);
      finding.file = file;
      add(std::move(finding));
    }
  }

  const std::filesystem::path& directory_;
  const SlicingRecord& slicing_;
  const std::function<CheckResult(const std::filesystem::path&)>& check_rank_;
  CheckResult& result_;
};

}  // namespace

void check_ranks(const std::filesystem::path& directory, const SlicingRecord& slicing,
                 const std::function<CheckResult(const std::filesystem::path&)>& check_rank,
                 CheckResult& result) {
  RanksCheck check(directory, slicing, check_rank, result);
  for (std::size_t rank = 0; rank < slicing.ranks.size(); ++rank) check.rank(rank);
  check.others();
}

}  // namespace ingot::formats
