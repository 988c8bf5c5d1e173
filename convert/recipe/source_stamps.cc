#include "convert/recipe/source_stamps.h"

#include <system_error>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/printable.h"
#include "formats/files/folder.h"
#include "formats/json/json.h"

namespace ingot::convert {

using formats::Json;

namespace fs = std::filesystem;

namespace {

// Files of a source are only read again where they seem changed, those of options refused.
Json json_of(const FileStamp& stamp, bool has_change) {
  Json json = {
      {"bytes", stamp.n_bytes}, {"modified_ns", stamp.modified_ns}, {"inode", stamp.inode}};
  if (has_change) json["changed_ns"] = stamp.changed_ns;
  return json;
}

std::string difference(const FileStamp& before, const FileStamp& now) {
  if (before.n_bytes != now.n_bytes)
    return fmt::format("it had {} bytes and has {}", before.n_bytes, now.n_bytes);
  if (!before.is_same_file(now)) return "another file has taken its place";
  if (before.modified_ns != now.modified_ns) return "it was written to";
  return "it was written to with its time put back, or its owner, mode or links changed";
}

// Returns a path relative to a directory: the same name from any working directory, also where one
// of the two paths is relative.
std::string name_from(const fs::path& directory, const fs::path& path) {
  const auto plain = [](const fs::path& any) { return fs::absolute(any).lexically_normal(); };
  return plain(path).lexically_relative(plain(directory)).generic_string();
}

}  // namespace

void SourceStamps::add(const fs::path& directory, ReadFor reader) {
  // Folders that cannot be read are refused where the checkpoint is opened.
  (void)visit_below(directory, [&](const fs::directory_entry& entry) {
    std::error_code ignored;
    if (entry.is_directory(ignored)) return !entry.path().filename().string().starts_with('.');
    if (entry.is_regular_file(ignored)) {
      if (const auto stamp = stamp_of(entry.path())) files_[entry.path()] = {*stamp, reader};
    }
    return false;
  });
}

void SourceStamps::keep_files_of(const formats::Checkpoint& checkpoint) {
  // Joined slices are read with the manifests and records of every rank.
  if (!checkpoint.is_whole()) return;
  std::set<fs::path> weights, side_files;
  for (const formats::SourceFile& file : checkpoint.files()) weights.insert(file.name);
  for (const formats::SideFile& file : checkpoint.side_files()) side_files.insert(file.path);
  std::erase_if(files_, [&](const auto& entry) {
    const fs::path name = entry.first.lexically_relative(checkpoint.directory());
    const bool is_inside = !name.empty() && *name.begin() != "..";
    const bool is_read = name.extension() == ".json" || weights.contains(name) ||
                         (entry.second.reader == ReadFor::kSource && side_files.contains(name));
    return is_inside && !is_read;
  });
}

void SourceStamps::require_unchanged() const {
  for (const auto& [path, entry] : files_) require_unchanged(path);
}

void SourceStamps::require_unchanged(const fs::path& path) const {
  const auto before = files_.find(path);
  if (before == files_.end()) return;
  const auto now = stamp_of(path);
  const auto& [stamp, reader] = before->second;
  if (now && (has_links_ ? *now == stamp : stamp.is_unwritten(*now))) return;
  throw Error(ErrorCode::kMismatch, "has changed while this run read it: {} ({})",
              now ? difference(stamp, *now) : "it is gone",
              reader == ReadFor::kSource
                  ? "let no program write to the source, and run again with --resume, which reads "
                    "changed files again"
                  : "restore the old file and run again with --resume, or start again with --force")
      .in_file(path.string());
}

Json SourceStamps::to_json(const fs::path& directory) const {
  Json json = Json::object();
  for (const auto& [path, entry] : files_)
    json[escaped_bytes(name_from(directory, path))] =
        json_of(entry.stamp, entry.reader == ReadFor::kSource && !has_links_);
  return json;
}

SourceStamps::Changes SourceStamps::changed_since(const Json& earlier,
                                                  const fs::path& directory) const {
  Changes changes;
  for (const auto& [path, entry] : files_) {
    const std::string name = name_from(directory, path);
    const auto found = earlier.find(escaped_bytes(name));
    if (found != earlier.end() &&
        *found == json_of(entry.stamp, entry.reader == ReadFor::kSource && !has_links_))
      continue;
    if (entry.reader == ReadFor::kSource) {
      changes.of_source.insert(name);
    } else {
      changes.of_options = true;
    }
  }
  return changes;
}

}  // namespace ingot::convert
