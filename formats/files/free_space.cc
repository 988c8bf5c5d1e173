#include "formats/files/free_space.h"

#include <cerrno>

#include <sys/statvfs.h>

#include "formats/base/error.h"

namespace ingot {

std::filesystem::path existing_parent(const std::filesystem::path& path) {
  std::filesystem::path existing = std::filesystem::absolute(path);
  while (!std::filesystem::exists(existing) && existing.has_relative_path())
    existing = existing.parent_path();
  return existing;
}

std::uint64_t free_bytes(const std::filesystem::path& path) {
  const std::filesystem::path existing = existing_parent(path);
  struct statvfs info {};
  if (::statvfs(existing.c_str(), &info) != 0)
    throw system_error(errno, "ask for free space", existing.string());
  return static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
}

}  // namespace ingot
