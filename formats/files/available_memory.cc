#include "formats/files/available_memory.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Source: Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst of Linux; proc(5).

namespace ingot {

namespace fs = std::filesystem;

namespace {

/// The files of a version of control groups.
struct GroupVersion {
  std::string_view file_system, limit, used;
  /// Keys of memory.stat: pages of files; a limit above, where those folders do not show.
  std::string_view inactive_file, active_file, limit_above;
};
constexpr GroupVersion kGroupVersions[] = {
    {"cgroup", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file",
     "total_active_file", "hierarchical_memory_limit"},
    {"cgroup2", "memory.max", "memory.current", "inactive_file", "active_file", ""}};

constexpr std::uint64_t kNoMemoryLimit = std::numeric_limits<std::uint64_t>::max();

std::vector<std::string> pieces_of_line(const std::string& text, char at) {
  std::vector<std::string> fields;
  std::istringstream in(text);
  for (std::string field; std::getline(in, field, at);) fields.push_back(field);
  return fields;
}

// Blanks in paths are written in octal, as `\040`.
std::string unescaped_place(const std::string& text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto is_digit = [&](std::size_t at) { return text[at] >= '0' && text[at] <= '7'; };
    if (text[i] == '\\' && i + 3 < text.size() && is_digit(i + 1) && is_digit(i + 2) &&
        is_digit(i + 3)) {
      plain += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 +
                                 (text[i + 3] - '0'));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

// The process's group in a hierarchy that has memory; nullopt without one.
std::optional<std::string> own_group(const fs::path& proc, const GroupVersion& version) {
  std::ifstream file(proc / "self/cgroup");
  for (std::string line; std::getline(file, line);) {
    // NUMBER:CONTROLLERS:PATH; version 2 names no controllers.
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::vector<std::string> controllers =
        pieces_of_line(line.substr(first + 1, second - first - 1), ',');
    const bool has_memory = version.file_system == "cgroup2"
                                ? controllers.empty()
                                : std::ranges::find(controllers, "memory") != controllers.end();
    if (has_memory) return line.substr(second + 1);
  }
  return std::nullopt;
}

// The group's folder below a place where its hierarchy is mounted; that place itself where the
// group is not below the mount, as seen from inside of a container.
fs::path folder_of(const std::string& group, const std::string& root, const fs::path& place) {
  if (group.find("/..") != std::string::npos) return place;
  if (root == "/") return place / fs::path(group).relative_path();
  const bool is_below = group == root || group.starts_with(root + "/");
  return is_below ? place / fs::path(group.substr(root.size())).relative_path() : place;
}

std::uint64_t number_in_file(const fs::path& file) {
  std::ifstream text(file);
  std::uint64_t n = 0;
  // `max`, and a file that cannot be read.
  return text >> n ? n : kNoMemoryLimit;
}

// The memory that the limit of one group leaves.
std::uint64_t left_in(const fs::path& folder, const GroupVersion& version) {
  std::uint64_t limit = number_in_file(folder / version.limit), pages_of_files = 0;
  std::ifstream statistics(folder / "memory.stat");
  std::string key;
  for (std::uint64_t n = 0; statistics >> key >> n;) {
    if (key == version.inactive_file || key == version.active_file) pages_of_files += n;
    if (key == version.limit_above) limit = std::min(limit, n);
  }
  const std::uint64_t used = number_in_file(folder / version.used);
  if (limit == kNoMemoryLimit || used == kNoMemoryLimit) return kNoMemoryLimit;
  const std::uint64_t taken = used - std::min(used, pages_of_files);
  return limit - std::min(limit, taken);
}

std::uint64_t left_in_groups(const fs::path& proc) {
  std::uint64_t left = kNoMemoryLimit;
  std::ifstream mounts(proc / "self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    // ID PARENT DEVICE ROOT PLACE OPTIONS [TAG...] - TYPE SOURCE OPTIONS
    const std::vector<std::string> fields = pieces_of_line(line, ' ');
    const auto dash = std::ranges::find(fields, "-");
    if (fields.size() < 6 || std::distance(dash, fields.end()) < 4) continue;
    const auto version = std::ranges::find(kGroupVersions, dash[1], &GroupVersion::file_system);
    if (version == std::end(kGroupVersions)) continue;
    const std::vector<std::string> options = pieces_of_line(dash[3], ',');
    if (version->file_system == "cgroup" && std::ranges::find(options, "memory") == options.end())
      continue;
    const std::optional<std::string> group = own_group(proc, *version);
    if (!group) continue;
    const fs::path place = unescaped_place(fields[4]);
    fs::path folder = folder_of(*group, unescaped_place(fields[3]), place);
    for (; folder != place && folder.has_relative_path(); folder = folder.parent_path())
      left = std::min(left, left_in(folder, *version));
    left = std::min(left, left_in(place, *version));
  }
  return left;
}

// The number behind a key in a file of proc; nullopt where there is none, or a word.
std::optional<std::uint64_t> number_in(const fs::path& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    std::uint64_t n = 0;
    if (std::istringstream(line.substr(key.size())) >> n) return n;
    return std::nullopt;
  }
  return std::nullopt;
}

/// The rest of the limits of this process (ulimit -v, -d).
std::uint64_t left_in_limits(const fs::path& proc) {
  std::uint64_t left = kNoMemoryLimit;
  for (const auto& [limit, used] :
       {std::pair("Max address space", "VmSize:"), std::pair("Max data size", "VmData:")}) {
    const auto most = number_in(proc / "self/limits", limit);
    if (!most) continue;
    const std::uint64_t taken = number_in(proc / "self/status", used).value_or(0) * 1024;
    // Stacks, arenas of the allocator and maps take room that is never used.
    left = std::min(left, (*most - std::min(*most, taken)) / 2);
  }
  return left;
}

}  // namespace

std::uint64_t available_memory(const fs::path& proc) {
  const auto available = number_in(proc / "meminfo", "MemAvailable:");
  return std::min(
      {available ? *available * 1024 : kNoMemoryLimit, left_in_groups(proc), left_in_limits(proc)});
}

}  // namespace ingot
