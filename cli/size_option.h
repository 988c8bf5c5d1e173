#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ingot::cli {

/// Bytes of `5GB`, `4GiB`, `500M`, `1048576`: decimal and binary units, a fraction allowed before
/// one. Throws kInvalidArgument naming the option.
std::uint64_t parse_size(std::string_view text, std::string_view option);

}  // namespace ingot::cli
