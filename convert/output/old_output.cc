#include "convert/output/old_output.h"

#include <algorithm>

#include <fmt/format.h>

#include "convert/output/apart.h"
#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/files/folder.h"
#include "formats/records/manifest.h"
#include "formats/signed/bundle.h"

namespace ingot::convert {

namespace fs = std::filesystem;

namespace {

using Names = std::set<std::string>;

// Adds the files that a manifest lists, and those of its own. A manifest that cannot be read says
// of no file that it is ours.
std::optional<formats::Manifest> add_listed(const fs::path& directory, const std::string& prefix,
                                            Names& listed) {
  std::optional<formats::Manifest> manifest;
  try {
    manifest = formats::read_manifest(directory);
  } catch (const Error&) {
    return std::nullopt;
  }
  if (!manifest) return std::nullopt;
  for (const auto& files : {manifest->files, manifest->side_files})
    for (const formats::ManifestFile& file : files) listed.insert(prefix + file.name);
  for (const std::string_view own :
       {formats::kManifestName, formats::kRecordsName, formats::kVerifyName,
        formats::kAttestationName, formats::kModelSignatureName})
    listed.insert(prefix + std::string(own));
  return manifest;
}

bool is_manifest(const std::string& name) {
  return fs::path(name).filename() == formats::kManifestName;
}

}  // namespace

Names output_entries(const OutputPaths& paths) {
  Names names;
  const auto is_own = [&](const fs::path& path) {
    const fs::path name = path.filename();
    return path.parent_path() == paths.output &&
           (name == paths.partial.filename() || name == paths.swept.filename() || is_probe(name));
  };
  const std::error_code failure = visit_below(paths.output, [&](const fs::directory_entry& entry) {
    if (is_own(entry.path())) return false;
    std::error_code ignored;
    if (entry.is_symlink(ignored) || !entry.is_directory(ignored))
      names.insert(entry.path().lexically_relative(paths.output).generic_string());
    return true;
  });
  if (failure && failure != std::errc::no_such_file_or_directory)
    throw system_error(failure.value(), "list the output", paths.output.string());
  return names;
}

OldFiles find_old_files(const OutputPaths& paths, const std::vector<std::string>& names,
                        const Names& begun) {
  Names listed = begun;
  const std::optional<formats::Manifest> whole = add_listed(paths.output, "", listed);
  if (whole && whole->slicing) {
    for (const auto& rank : whole->slicing->ranks)
      add_listed(paths.output / rank.directory, rank.directory + "/", listed);
  }
  if (!whole) {
    listed.insert(names.begin(), names.end());
    listed.merge(formats::checkpoint_names(paths.output));
  }
  OldFiles found;
  for (const std::string& name : output_entries(paths))
    (listed.contains(name) ? found.known : found.unknown).insert(name);
  return found;
}

void require_no_unknown(const Names& unknown, const fs::path& output) {
  if (unknown.empty()) return;
  constexpr std::size_t kShown = 5;
  std::string list;
  std::size_t n = 0;
  for (const std::string& name : unknown) {
    if (n++ == kShown) break;
    list += fmt::format("{}'{}'", list.empty() ? "" : ", ", name);
  }
  if (unknown.size() > kShown) list += fmt::format(" and {} more", unknown.size() - kShown);
  throw Error(ErrorCode::kExists,
              "holds {} that no manifest there lists: {}; nothing is removed or replaced (move "
              "{} away, or choose another output)",
              unknown.size() == 1 ? "a file" : "files", list, unknown.size() == 1 ? "it" : "them")
      .in_file(output.string());
}

void remove_old_files(const OutputPaths& paths, const std::vector<std::string>& names,
                      const Names& known) {
  const Folder output = Folder::open(paths.output);
  const std::optional<Folder> staged = output.find(paths.staged.lexically_relative(paths.output));
  const Names kept(names.begin(), names.end());
  Names here = output_entries(paths);
  std::erase_if(here, [&](const std::string& name) { return !known.contains(name); });
  const auto is_published = [&](const std::string& name) {
    return kept.contains(name) && (!staged || !staged->stamp(name));
  };
  // The one of the whole first: without it, those of ranks are slices of nothing.
  const std::string whole(formats::kManifestName);
  if (here.contains(whole) && !is_published(whole)) {
    output.remove(whole);
    sync_directory(paths.output);
  }
  for (const std::string& name : here)
    if (is_manifest(name) && !is_published(name)) output.remove(name);
  for (const std::string& name : here)
    if (!is_manifest(name) && !kept.contains(name)) output.remove(name);
  std::vector<fs::path> folders;
  for (const fs::directory_entry& entry : entries_below(paths.output)) {
    const fs::path name = entry.path().lexically_relative(paths.output);
    if (*name.begin() == paths.partial.filename() || entry.is_symlink()) continue;
    if (entry.is_directory()) folders.push_back(entry.path());
  }
  // Folders that hold something stay.
  std::error_code ignored;
  for (auto folder = folders.rbegin(); folder != folders.rend(); ++folder)
    fs::remove(*folder, ignored);
}

}  // namespace ingot::convert
