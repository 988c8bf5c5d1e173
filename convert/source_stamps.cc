#include "convert/source_stamps.h"

#include <system_error>

#include <fmt/format.h>

#include "formats/base/error.h"

namespace ingot::convert {

using formats::Json;

namespace fs = std::filesystem;

namespace {

Json json_of(const FileStamp& stamp) {
  return {{"bytes", stamp.n_bytes}, {"modified_ns", stamp.modified_ns}, {"inode", stamp.inode}};
}

std::string difference(const FileStamp& before, const FileStamp& now) {
  if (before.n_bytes != now.n_bytes)
    return fmt::format("it had {} bytes and has {}", before.n_bytes, now.n_bytes);
  if (!before.is_same_file(now)) return "another file has taken its place";
  return "it was written to";
}

}  // namespace

void SourceStamps::add(const fs::path& directory) {
  std::error_code failure;
  fs::recursive_directory_iterator at(directory, failure);
  for (; !failure && at != fs::recursive_directory_iterator(); at.increment(failure)) {
    if (at->is_directory(failure)) {
      if (at->path().filename().string().starts_with('.')) at.disable_recursion_pending();
      continue;
    }
    if (!at->is_regular_file(failure)) continue;
    if (const auto stamp = stamp_of(at->path())) files_[at->path()] = *stamp;
  }
}

void SourceStamps::keep_files_of(const formats::Checkpoint& source) {
  // Joined slices are read with the manifests and records of every rank.
  if (!source.is_whole()) return;
  std::set<fs::path> read;
  for (const formats::SourceFile& file : source.files()) read.insert(file.name);
  for (const formats::SideFile& file : source.side_files()) read.insert(file.path);
  std::erase_if(files_, [&](const auto& entry) {
    const fs::path name = entry.first.lexically_relative(source.directory());
    const bool is_inside = !name.empty() && *name.begin() != "..";
    return is_inside && name.extension() != ".json" && !read.contains(name);
  });
}

void SourceStamps::require_unchanged() const {
  for (const auto& [path, stamp] : files_) require_unchanged(path);
}

void SourceStamps::require_unchanged(const fs::path& path) const {
  const auto before = files_.find(path);
  if (before == files_.end()) return;
  const auto now = stamp_of(path);
  if (now && *now == before->second) return;
  throw Error(
      ErrorCode::kMismatch,
      fmt::format("has changed while this run read it: {} (let nothing write to the source, "
                  "and run again with --resume, which reads what changed once more)",
                  now ? difference(before->second, *now) : "it is gone"))
      .in_file(path.string());
}

Json SourceStamps::to_json(const fs::path& directory) const {
  Json json = Json::object();
  for (const auto& [path, stamp] : files_)
    json[path.lexically_relative(directory).generic_string()] = json_of(stamp);
  return json;
}

std::set<std::string> SourceStamps::changed_since(const Json& earlier,
                                                  const fs::path& directory) const {
  std::set<std::string> changed;
  for (const auto& [path, stamp] : files_) {
    const std::string name = path.lexically_relative(directory).generic_string();
    const auto found = earlier.find(name);
    if (found == earlier.end() || *found != json_of(stamp)) changed.insert(name);
  }
  return changed;
}

}  // namespace ingot::convert
