#include "shard/join/state_ranks.h"

#include "formats/base/error.h"
#include "formats/container/checkpoint_index.h"
#include "shard/join/joined_model.h"
#include "shard/join/slice_files.h"
#include "shard/join/slice_join.h"

namespace ingot::shard {

using formats::Manifest;

namespace fs = std::filesystem;

namespace {

// Folders with weights of ranks: that of the draft model.
std::set<std::string> folders_of(const Manifest& manifest) {
  std::set<std::string> folders;
  for (const formats::ManifestFile& file : manifest.files) {
    const fs::path folder = fs::path(file.name).parent_path();
    if (!folder.empty()) folders.insert(folder.string());
  }
  return folders;
}

}  // namespace

formats::Draft join_state_ranks(const fs::path& directory, const Manifest& manifest,
                                bool compare_replicas, const formats::OpenOptions& options) {
  SliceJoin join;
  ErrorList faults;
  std::vector<SliceFile> files;
  for (std::uint32_t i = 0; i < manifest.files.size(); ++i) {
    const formats::ManifestFile& file = manifest.files[i];
    try {
      const auto [index, is_new] = join.add_file(directory / file.name, file.name, file.n_bytes, i);
      if (!is_new)
        throw Error(ErrorCode::kDuplicate, "is the same file as another rank's (fetch it again)");
      files.push_back({.index = index, .name = file.name});
    } catch (Error& error) {
      faults.add(error.in_file((directory / file.name).string()));
    }
  }
  faults.throw_if_any();
  add_recorded(
      join, files, directory, manifest.records_hash, [](const std::string& name) { return name; },
      faults, manifest.constants());
  faults.throw_if_any();
  const formats::SlicingRecord* slicing = manifest.slicing ? &*manifest.slicing : nullptr;
  formats::Draft model = joined_model(
      directory, whole_config(directory, slicing, options), formats::find_dialect(manifest.dialect),
      join.finish(/*gives_dimensions=*/true), compare_replicas, folders_of(manifest));
  if (!manifest.index.empty()) {
    model.index.frame = formats::parse_checkpoint_index(
                            manifest.index, (directory / formats::kManifestName).string())
                            .frame;
  }
  return model;
}

}  // namespace ingot::shard
