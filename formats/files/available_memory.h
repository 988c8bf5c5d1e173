#pragma once

#include <cstdint>
#include <filesystem>

namespace ingot {

/// Bytes that this process may still take: the system's available memory, or the rest of the least
/// limit of the control groups (of either version) that it is in, from its own up to the root.
/// Pages of files that can be dropped count as free. Where address space or data of the process are
/// limited (ulimit -v, -d), it may take half of what is left there.
std::uint64_t available_memory(const std::filesystem::path& proc = "/proc");

}  // namespace ingot
