#pragma once

#include <cstdint>
#include <string_view>

namespace ingot {

/// The bytes of --mem-limit, or those that the system and its control groups leave where these are
/// fewer: a process that takes more is killed.
std::uint64_t memory_budget(std::string_view mem_limit);

}  // namespace ingot
