#include "convert/output_directory.h"

#include <algorithm>
#include <cerrno>
#include <set>

#include <fmt/format.h>
#include <sys/statvfs.h>

#include "formats/base/fd.h"
#include "formats/manifest.h"

namespace ingot::convert {

namespace fs = std::filesystem;

namespace {

bool ends_with(std::string_view text, std::string_view suffix) {
  return text.ends_with(suffix);
}

bool is_description_file(const std::string& name) {
  const auto dialects = formats::dialects();
  return std::any_of(dialects.begin(), dialects.end(), [&](const formats::Dialect* dialect) {
    return !dialect->description_file.empty() && dialect->description_file == name;
  });
}

bool belongs_to_a_checkpoint(const std::string& name) {
  return ends_with(name, ".safetensors") || ends_with(name, ".safetensors.index.json") ||
         name == "config.json" || name == formats::kManifestName || name == formats::kRecordsName ||
         is_description_file(name);
}

bool inside(const fs::path& inner, const fs::path& outer) {
  const auto [at, rest] = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  return at == outer.end();
}

// The path with links resolved as far as it exists, without a trailing separator.
fs::path resolved(const fs::path& path) {
  fs::path whole = fs::weakly_canonical(fs::absolute(path));
  if (!whole.has_filename()) whole = whole.parent_path();
  return whole;
}

void sync_with_parents(const OutputPaths& paths, const std::set<fs::path>& directories) {
  for (const fs::path& directory : directories) sync_directory(paths.output / directory);
  sync_directory(paths.output);
}

}  // namespace

OutputPaths::OutputPaths(fs::path directory)
    : output(std::move(directory)),
      partial(output / formats::kPartialName),
      staged(partial / "files"),
      consumed(partial / "consumed"),
      journal(partial / "journal.jsonl") {}

OutputState output_state(const fs::path& output) {
  std::error_code failure;
  const fs::file_status status = fs::status(output, failure);
  if (status.type() == fs::file_type::not_found) return OutputState::kEmpty;
  if (failure) throw system_error(failure.value(), "look at the output", output.string());
  if (!fs::is_directory(status)) {
    throw Error(ErrorCode::kExists, "is not a directory (give another output)")
        .in_file(output.string());
  }
  if (fs::exists(output / formats::kPartialName)) return OutputState::kUnfinished;
  if (fs::exists(output / formats::kManifestName)) return OutputState::kFinished;
  const fs::directory_iterator entries(output, failure);
  if (failure) throw system_error(failure.value(), "list the output", output.string());
  return entries == fs::directory_iterator() ? OutputState::kEmpty : OutputState::kForeign;
}

void require_apart(const fs::path& source, const fs::path& output) {
  const fs::path from = resolved(source), to = resolved(output);
  if (inside(to, from) || inside(from, to)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the output {} and the source {} must not contain one another",
                            to.string(), from.string()));
  }
}

std::uint64_t free_bytes(const fs::path& path) {
  fs::path existing = fs::absolute(path);
  while (!fs::exists(existing) && existing.has_relative_path()) existing = existing.parent_path();
  struct statvfs info {};
  if (::statvfs(existing.c_str(), &info) != 0)
    throw system_error(errno, "ask for free space", existing.string());
  return static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
}

std::vector<std::string> publish_order(const Plan& plan, const formats::Checkpoint& source) {
  std::vector<std::string> names;
  for (const PlannedFile& file : plan.files) names.push_back(file.name);
  for (const formats::SideFile& side : source.side_files()) names.push_back(side.path);
  if (!plan.description_text.empty()) names.emplace_back(plan.dialect->description_file);
  if (!plan.config_text.empty()) names.emplace_back("config.json");
  if (!plan.index_text.empty()) names.emplace_back("model.safetensors.index.json");
  names.emplace_back(formats::kRecordsName);
  names.emplace_back(formats::kManifestName);
  return names;
}

void remove_stale(const OutputPaths& paths, const std::vector<std::string>& names) {
  const auto remove = [&](const fs::path& path) {
    std::error_code failure;
    fs::remove(path, failure);
    if (failure) throw system_error(failure.value(), "remove the old file", path.string());
  };
  remove(paths.output / formats::kManifestName);
  sync_directory(paths.output);
  const std::set<std::string> kept(names.begin(), names.end());
  std::vector<fs::path> stale;
  for (const fs::directory_entry& entry : fs::directory_iterator(paths.output)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && belongs_to_a_checkpoint(name) && !kept.contains(name)) {
      stale.push_back(entry.path());
    }
  }
  for (const fs::path& path : stale) remove(path);
}

void publish(const OutputPaths& paths, const std::vector<std::string>& names) {
  std::set<fs::path> directories;
  for (const std::string& name : names) {
    const fs::path target = paths.output / name;
    // The last files say that everything else is there; what they speak of must be durable before
    // them.
    if (name == "config.json" || name == formats::kRecordsName || name == formats::kManifestName) {
      sync_with_parents(paths, directories);
    }
    if (!fs::exists(paths.staged / name)) {
      if (fs::exists(target)) continue;
      throw Error(ErrorCode::kMismatch,
                  "is neither staged nor published (start again with --force)")
          .in_file(target.string());
    }
    fs::create_directories(target.parent_path());
    rename_file(paths.staged / name, target);
    if (const fs::path parent = fs::path(name).parent_path(); !parent.empty())
      directories.insert(parent);
  }
  sync_with_parents(paths, directories);
  // The journal goes last: as long as it is there, this function can be repeated.
  fs::remove_all(paths.staged);
  fs::remove_all(paths.consumed);
  fs::remove(paths.journal);
  fs::remove_all(paths.partial);
  sync_directory(paths.output);
}

}  // namespace ingot::convert
