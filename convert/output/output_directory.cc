#include "convert/output/output_directory.h"

#include <algorithm>
#include <set>

#include "convert/output/apart.h"
#include "convert/output/manifest_writer.h"
#include "convert/output/rank_directories.h"
#include "formats/base/fd.h"
#include "formats/base/parallel.h"
#include "formats/container/checkpoint_index.h"
#include "formats/files/folder.h"
#include "formats/records/manifest.h"

namespace ingot::convert {

namespace fs = std::filesystem;

namespace {

bool is_rank_directory(const std::string& name) {
  return name.starts_with("rank-") && name.find("-of-") != std::string::npos;
}

// A file of a later step proves that those of earlier steps are in place, in every directory: one
// by one, hundreds of ranks would wait for the disk several times each.
int publish_step(const fs::path& name) {
  const std::string bare = name.filename().string();
  const bool is_of_rank = name.has_parent_path();
  if (bare == formats::kManifestName) return is_of_rank ? 3 : 5;
  if (bare == formats::kRecordsName) return is_of_rank ? 2 : 4;
  return bare == "config.json" || bare.ends_with(".safetensors.index.json") ? 1 : 0;
}

// False for a folder that is not there (another run may have removed it at this moment), and for an
// entry that is no folder.
bool holds_more_than(const fs::path& folder, const fs::path& entry) {
  std::error_code failure;
  for (const std::string& name : names_in(folder, failure)) {
    if (name != entry.filename() && !is_probe(name)) return true;
  }
  if (failure && failure != std::errc::no_such_file_or_directory &&
      failure != std::errc::not_a_directory)
    throw system_error(failure.value(), "list the output", folder.string());
  return false;
}

void sync_with_parents(const OutputPaths& paths, const std::set<fs::path>& directories) {
  // Many files wait for the disk once instead of once each.
  constexpr std::size_t kMany = 4;
  if (directories.size() > kMany) {
    sync_file_system(paths.output);
    return;
  }
  for (const fs::path& directory : directories) sync_directory(paths.output / directory);
  sync_directory(paths.output);
}

}  // namespace

OutputPaths::OutputPaths(fs::path directory)
    : output(std::move(directory)),
      partial(output / formats::kPartialName),
      staged(partial / "files"),
      consumed(partial / "consumed"),
      journal(partial / "journal.jsonl"),
      claims(partial / "claims"),
      parts(partial / "parts"),
      swept(output / ".ingot-swept") {}

void require_own_folders(const OutputPaths& paths, const std::vector<std::string>& names) {
  if (!fs::exists(paths.output)) return;
  const Folder output = Folder::open(paths.output);
  for (const fs::path& own : {paths.swept, paths.staged, paths.consumed, paths.claims, paths.parts})
    (void)output.find(own.lexically_relative(paths.output));
  std::set<fs::path> folders;
  for (const std::string& name : names) folders.insert(fs::path(name).parent_path());
  for (const fs::directory_entry& entry : entries_in(paths.output)) {
    if (is_rank_directory(entry.path().filename().string()))
      folders.insert(entry.path().filename());
  }
  for (const fs::path& folder : folders) (void)output.find(folder);
}

void clear_partial(const OutputPaths& paths) {
  const Folder output = Folder::open(paths.output);
  output.remove_all(paths.swept.filename());
  const fs::path partial = paths.partial.filename();
  for (const fs::directory_entry& entry : entries_in(paths.partial)) {
    if (const fs::path name = entry.path().filename(); name != paths.claims.filename())
      output.remove_all(partial / name);
  }
}

OutputState output_state(const fs::path& output) {
  const OutputPaths paths(output);
  return holds_more_than(paths.partial, paths.claims) ? OutputState::kUnfinished
                                                      : state_beneath(output);
}

OutputState state_beneath(const fs::path& output) {
  std::error_code failure;
  const fs::file_status status = fs::status(output, failure);
  if (status.type() == fs::file_type::not_found) return OutputState::kEmpty;
  if (failure) throw system_error(failure.value(), "look at the output", output.string());
  if (!fs::is_directory(status)) {
    throw Error(ErrorCode::kExists, "is not a directory (give another output)")
        .in_file(output.string());
  }
  if (fs::exists(output / formats::kManifestName)) return OutputState::kFinished;
  return holds_more_than(output, OutputPaths(output).partial) ? OutputState::kForeign
                                                              : OutputState::kEmpty;
}

std::vector<std::string> publish_order(const Plan& plan) {
  std::vector<std::string> names, side_names;
  for (const formats::SideFile& side : copied_files(plan)) side_names.push_back(side.path);
  for (auto& [name, text] : derived_files(plan)) side_names.push_back(std::move(name));
  const auto add_directory = [&](const std::string& folder, const std::vector<std::string>& weights,
                                 bool has_index) {
    for (const std::string& name : weights) names.push_back(folder + name);
    for (const std::string& name : side_names) names.push_back(folder + name);
    if (has_index) names.push_back(folder + std::string(formats::kIndexName));
    names.push_back(folder + std::string(formats::kRecordsName));
    names.push_back(folder + std::string(formats::kManifestName));
  };
  if (!plan.has_rank_directories()) {
    std::vector<std::string> weights;
    for (const PlannedFile& file : plan.files) {
      for (const PlannedFile::Member& member : file.members) weights.push_back(member.path);
    }
    add_directory("", weights, !plan.json.index.empty());
    return names;
  }
  const std::uint32_t n_ranks = plan.slicing->topology.n_ranks();
  for (std::uint32_t rank = 0; rank < n_ranks; ++rank) {
    std::vector<std::string> weights;
    for (const RankFile& file : files_of_rank(plan, rank)) weights.push_back(file.name);
    add_directory(shard::rank_directory_name(rank, n_ranks) + "/", weights, true);
  }
  names.emplace_back(formats::kRecordsName);
  names.emplace_back(formats::kManifestName);
  std::stable_sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return publish_step(a) < publish_step(b);
  });
  return names;
}

void publish(const OutputPaths& paths, const std::vector<std::string>& names,
             const StagedFiles* staged) {
  const Folder output = Folder::open(paths.output);
  const std::optional<Folder> files = output.find(paths.staged.lexically_relative(paths.output));
  std::set<fs::path> directories;
  int step = 0;
  for (const std::string& name : names) {
    if (const int next = publish_step(name); next != step) {
      sync_with_parents(paths, directories);
      directories.clear();
      step = next;
    }
    if (!files || !files->stamp(name)) {
      if (output.stamp(name)) continue;
      throw Error(ErrorCode::kMismatch,
                  "is neither staged nor published (start again with --force)")
          .in_file((paths.output / name).string());
    }
    if (staged != nullptr) staged->require_ours(name);
    const fs::path parent = fs::path(name).parent_path();
    (void)output.make(parent);
    files->rename(name, output, name);
    if (!parent.empty()) directories.insert(parent);
  }
  sync_with_parents(paths, directories);
}

void sweep(const OutputPaths& paths) {
  const Folder output = Folder::open(paths.output);
  const fs::path partial = paths.partial.filename(), swept = paths.swept.filename();
  output.remove_all(partial / paths.staged.filename());
  output.remove_all(swept);
  output.rename(partial, output, swept);
  sync_directory(paths.output);
}

void remove_swept(const OutputPaths& paths) {
  Folder::open(paths.output).remove_all(paths.swept.filename());
}

}  // namespace ingot::convert
