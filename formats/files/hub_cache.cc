#include "formats/files/hub_cache.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/base/foreign_files.h"
#include "formats/files/folder.h"

namespace ingot::formats {
namespace fs = std::filesystem;
namespace {

constexpr std::uint64_t kMaxRefBytes = 256;
constexpr std::string_view kFolderPrefix = "models--";
constexpr std::string_view kSeparator = "--";
// The longest that the hub accepts.
constexpr std::size_t kMaxNameBytes = 96;

bool is_word(std::string_view text, std::string_view more) {
  return !text.empty() && std::ranges::all_of(text, [&](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           more.find(c) != std::string_view::npos;
  });
}

// True if the text can be half of a model's name, by the rules of the hub's own programs.
bool is_half_of_name(std::string_view text) {
  return is_word(text, "._-") && text.size() <= kMaxNameBytes && text.find_first_of(".-") != 0 &&
         text.find_last_of(".-") != text.size() - 1 && text.find("..") == std::string_view::npos &&
         text.find(kSeparator) == std::string_view::npos;
}

// One that leads out of the folder would be read as a path.
bool is_revision(std::string_view text) {
  return is_word(text, "._-/") && !text.starts_with('/') && !text.ends_with('/') &&
         text.find("..") == std::string_view::npos;
}

bool is_snapshot_name(std::string_view name) {
  return !name.empty() && !name.starts_with('.') &&
         name.find_first_of("/\\") == std::string_view::npos;
}

// ORG/NAME of a folder models--ORG--NAME, or empty.
std::string model_of(const fs::path& folder) {
  const std::string name = folder.filename().string();
  if (!name.starts_with(kFolderPrefix)) return {};
  const std::string_view model = std::string_view(name).substr(kFolderPrefix.size());
  const std::size_t at = model.find(kSeparator);
  if (at == std::string_view::npos) return std::string(model);
  return fmt::format("{}/{}", model.substr(0, at), model.substr(at + kSeparator.size()));
}

fs::path snapshot_of(const fs::path& folder, const std::string& revision) {
  const fs::path snapshots = folder / "snapshots";
  const fs::path ref = folder / "refs" / revision;
  std::error_code failure;
  std::string name;
  if (fs::is_regular_file(ref, failure)) name = read_text_file(ref, kMaxRefBytes);
  name.erase(name.find_last_not_of(" \r\n\t") + 1);
  for (const std::string& commit : {name, name.empty() ? revision : std::string()}) {
    if (is_snapshot_name(commit) && fs::is_directory(snapshots / commit, failure))
      return snapshots / commit;
  }
  const std::string model = model_of(folder);
  throw Error(ErrorCode::kNotFound,
              "is a model's folder in the hub's cache, and {} (fetch the model again{}, or name "
              "one of its snapshots: {})",
              name.empty()
                  ? fmt::format("has no refs/{}", revision)
                  : fmt::format("refs/{} names snapshot '{}', which is not here", revision, name),
              model.empty() ? std::string()
                            : fmt::format(": hf download {} --revision {}", model, revision),
              first_names(names_in(snapshots)))
      .in_file(folder.string());
}

}  // namespace

std::optional<HubName> parse_hub_name(std::string_view text) {
  HubName name;
  if (const std::size_t at = text.find('@'); at != std::string_view::npos) {
    name.revision = text.substr(at + 1);
    text = text.substr(0, at);
    if (!is_revision(name.revision)) return std::nullopt;
  }
  const std::size_t slash = text.find('/');
  if (slash == std::string_view::npos || !is_half_of_name(text.substr(0, slash)) ||
      !is_half_of_name(text.substr(slash + 1)))
    return std::nullopt;
  name.model = text;
  return name;
}

std::optional<fs::path> find_hub_snapshot(const fs::path& cache, const HubName& name) {
  const std::size_t slash = name.model.find('/');
  const fs::path folder =
      cache / fmt::format("{}{}{}{}", kFolderPrefix, name.model.substr(0, slash), kSeparator,
                          name.model.substr(slash + 1));
  std::error_code failure;
  if (cache.empty() || !fs::is_directory(folder, failure)) return std::nullopt;
  return snapshot_of(folder, name.revision);
}

fs::path checkpoint_directory(const fs::path& directory) {
  std::error_code failure;
  const bool is_cached = fs::is_directory(directory / "snapshots", failure) &&
                         !fs::exists(directory / "config.json", failure) &&
                         (fs::is_directory(directory / "blobs", failure) ||
                          fs::is_directory(directory / "refs", failure));
  return is_cached ? snapshot_of(directory, "main") : directory;
}

std::optional<HubSnapshot> hub_snapshot_at(const fs::path& directory) {
  const fs::path path = resolved_path(directory);
  if (path.parent_path().filename() != "snapshots") return std::nullopt;
  // Both become words of commands and of a model card.
  HubSnapshot snapshot{.model = model_of(path.parent_path().parent_path()),
                       .commit = path.filename().string()};
  if (!parse_hub_name(snapshot.model) || !is_word(snapshot.commit, "._-")) return std::nullopt;
  return snapshot;
}

std::optional<std::string> hub_fetch(const fs::path& directory) {
  const auto snapshot = hub_snapshot_at(directory);
  if (!snapshot) return std::nullopt;
  return fmt::format(
      "this snapshot in the hub's cache is not complete: hf download {} --revision {}",
      snapshot->model, snapshot->commit);
}

std::optional<fs::path> hub_folder_around(const fs::path& path, bool is_whole) {
  constexpr std::array<std::string_view, 2> kKept = {"snapshots", "blobs"};
  // Folders of each kind of repository begin so.
  constexpr std::array<std::string_view, 4> kPrefixes = {kFolderPrefix, "datasets--", "spaces--",
                                                         "kernels--"};
  fs::path below = resolved_path(path);
  for (fs::path at = below; at.has_relative_path(); at = at.parent_path()) {
    const std::string name = at.filename().string(), inner = below.filename().string();
    below = at;
    if (std::ranges::none_of(kPrefixes, [&](auto prefix) { return name.starts_with(prefix); }))
      continue;
    std::error_code failure;
    const auto is_kept = [&](std::string_view kept) {
      return inner == kept || (is_whole && fs::is_directory(at / kept, failure));
    };
    if (std::ranges::any_of(kKept, is_kept)) return at;
  }
  return std::nullopt;
}

}  // namespace ingot::formats
