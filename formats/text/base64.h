#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ingot {

/// Letters for the values 62 and 63: `+/`, or `-_` in names and addresses.
enum class Base64 : std::uint8_t { kStandard, kForAddresses };

/// The text of bytes in the standard letters, padded to whole groups of four.
std::string base64_text(std::string_view bytes);

/// The bytes of a text in whole groups of four letters; nullopt for any other, an empty one
/// included.
std::optional<std::string> base64_bytes(std::string_view text, Base64 letters = Base64::kStandard);

}  // namespace ingot
