#pragma once

#include <cstdint>
#include <filesystem>

namespace ingot {

/// The path itself, or the nearest directory above it that there is.
std::filesystem::path existing_parent(const std::filesystem::path& path);

/// Bytes that the file system of `path` (or its nearest existing parent) has for us.
std::uint64_t free_bytes(const std::filesystem::path& path);

}  // namespace ingot
