#include "delta/weights.h"

#include <algorithm>
#include <set>

#include "delta/stream.h"
#include "formats/base/error.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/container/checkpoint_index.h"
#include "formats/container/safetensors.h"
#include "formats/records/layout.h"
#include "formats/records/manifest.h"

namespace ingot::delta {

namespace fs = std::filesystem;
using formats::StoredTensor;

namespace {

constexpr std::uint64_t kMaxBaseIndexBytes = std::uint64_t{1} << 30;

std::vector<std::string> weights_names(const fs::path& directory) {
  std::set<std::string> names;
  const fs::path index = directory / formats::kIndexName;
  if (stamp_of(index)) {
    const auto parsed = formats::parse_checkpoint_index(read_text_file(index, kMaxBaseIndexBytes),
                                                        formats::kIndexName);
    for (const auto& [tensor, file] : parsed.weight_map) names.insert(file);
  } else {
    for (std::string& name : formats::list_file_names(directory)) {
      if (name.ends_with(formats::kWeightsSuffix)) names.insert(std::move(name));
    }
  }
  return {names.begin(), names.end()};
}

// The directories of ranks below one that ingot has made.
std::vector<std::string> rank_folders(const fs::path& directory) {
  std::vector<std::string> folders;
  const auto manifest = formats::read_manifest(directory);
  if (!manifest || !manifest->slicing) return folders;
  for (const formats::RankEntry& rank : manifest->slicing->ranks) folders.push_back(rank.directory);
  std::ranges::sort(folders);
  return folders;
}

// True if each of several files may have a tensor of the same name.
bool has_files_of_ranks(const fs::path& directory) {
  const auto manifest = formats::read_manifest(directory);
  const formats::Layout* layout = manifest ? formats::find_layout(manifest->layout) : nullptr;
  return layout != nullptr && layout->has_shards();
}

// Files in a directory without those of the ranks below it.
void add_extra_names(const fs::path& directory, const std::string& prefix,
                     std::span<const std::string> folders, std::set<std::string>& names) {
  ErrorList faults;
  const auto add = [&](const std::string& name) {
    const bool is_of_rank = std::ranges::any_of(
        folders, [&](const std::string& folder) { return name.starts_with(folder + "/"); });
    if (!is_of_rank && stamp_of(directory / name)) names.insert(prefix + name);
  };
  for (const formats::SideFile& file : formats::list_side_files(directory, faults).files)
    add(file.path);
  faults.throw_if_any();
  for (const std::string& name : formats::checkpoint_names(directory)) {
    if (!name.ends_with(formats::kWeightsSuffix)) add(name);
  }
}

}  // namespace

Weights::Weights(const fs::path& directory, std::size_t threads) : directory_(directory) {
  try {
    formats::require_finished_directory(directory);
    std::vector<std::string> names = weights_names(directory);
    if (names.empty()) {
      folders_ = rank_folders(directory);
      for (const std::string& folder : folders_) {
        formats::require_finished_directory(directory / folder);
        for (const std::string& name : weights_names(directory / folder))
          names.push_back(folder + "/" + name);
      }
    }
    if (names.empty()) throw Error(ErrorCode::kNotFound, "has no weights");
    std::vector<formats::WeightsFile> files = formats::locate_files(names, directory, {});
    ErrorList faults;
    stored_ = formats::read_headers(files, threads, faults);
    faults.throw_if_any();
    std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint32_t> by_place;
    for (std::uint32_t i = 0; i < files.size(); ++i) {
      const FileStamp& stamp = files[i].stamp.value();
      first_of_.push_back(by_place.emplace(std::pair(stamp.device, stamp.inode), i).first->second);
    }
    bytes_.emplace(std::move(files));
    for (StoredTensor& tensor : stored_) {
      if (!folders_.empty())
        tensor.name = fs::path(file_of(tensor)).parent_path().string() + "/" + tensor.name;
    }
    names_.emplace(stored_);
    const auto sorted = names_->sorted();
    const auto is_same = [&](std::uint32_t a, std::uint32_t b) {
      return stored_[a].name == stored_[b].name;
    };
    const auto twice = std::ranges::adjacent_find(sorted, is_same);
    if (twice == sorted.end()) return;
    if (!has_files_of_ranks(directory)) {
      throw Error(ErrorCode::kDuplicate, "is in {} too: a delta changes tensors by their names",
                  file_of(stored_[*(twice + 1)]))
          .in_file(file_of(stored_[*twice]))
          .in_tensor(stored_[*twice].name);
    }
    is_by_file_ = true;
    for (StoredTensor& tensor : stored_) tensor.name = file_of(tensor) + "/" + tensor.name;
    names_.emplace(stored_);
  } catch (Error& error) {
    error.in_directory(directory.string());
    throw;
  }
}

std::map<std::string, Hash128, std::less<>> Weights::recorded_hashes() const {
  std::map<std::string, Hash128, std::less<>> hashes;
  const auto add = [&](const std::string& folder) {
    const fs::path place = directory_ / folder;
    const auto manifest = formats::read_manifest(place);
    if (!manifest || !stamp_of(place / formats::kRecordsName)) return;
    for (const formats::TensorRecord& record :
         formats::read_tensor_records(place / formats::kRecordsName, manifest->records_hash)) {
      for (const formats::TensorHash& part : record.output) {
        // A stretch of a stored tensor is not one.
        const std::string before = is_by_file_ ? part.file : folder;
        if (!part.piece) hashes.emplace((fs::path(before) / part.name).string(), part.hash);
      }
    }
  };
  if (folders_.empty()) add("");
  for (const std::string& folder : folders_) add(folder);
  return hashes;
}

const StoredTensor* Weights::find(std::string_view name) const {
  const auto found = names_->find(name);
  return found ? &stored_[*found] : nullptr;
}

std::uint64_t Weights::n_bytes() const {
  std::uint64_t n = 0;
  for (const StoredTensor& tensor : stored_) n += tensor.n_bytes;
  return n;
}

void require_one_version(const Weights& weights, std::uint64_t version) {
  for (const std::string& folder : weights.folders()) {
    const fs::path place = weights.directory() / folder;
    if (const auto state = state_of(place); state && *state != version)
      throw Error(ErrorCode::kMismatch,
                  "holds version {}, and the directory above it version {} (go on with each rank "
                  "by itself, or begin again with a copy of one version)",
                  *state, version)
          .in_file(place.string());
  }
}

std::vector<std::string> extra_names(const Weights& weights) {
  std::set<std::string> names;
  add_extra_names(weights.directory(), "", weights.folders(), names);
  for (const std::string& folder : weights.folders())
    add_extra_names(weights.directory() / folder, folder + "/", {}, names);
  return {names.begin(), names.end()};
}

}  // namespace ingot::delta
